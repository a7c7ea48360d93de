#!/usr/bin/env python3
"""Writes the tokenizer corpus: tests/data/corpus.txt (one text per line), tests/data/text-escaped.txt (texts with line
breaks and arbitrary bytes; a backslash and n is a line feed, \\xNN a byte, two backslashes one backslash), and
tests/data/mixtures-escaped.txt (short texts in which characters of all classes meet in every order, to show where
pre-tokenizers cut).

usage: gencorpus.py OUT_DIR
Deterministic: the same program writes the same bytes. All content was made for this purpose.
"""
import random
import sys
from pathlib import Path

R = random.Random(20261129)

PROSE = {
    "en": """The old lighthouse keeper counted the ships again before supper. Nobody in the village remembered when the
harbour had been this quiet, and the gulls seemed offended by it. She'd have gone home, but it wasn't her turn; they'll
say it's fine, I'm sure, and we're all tired. A machine that splits its work across three boxes needs to know how fast
each wire is. Don't panic: the third stage won't start until you've loaded its layers. Isn't THAT what HE'S asked for?
WE'LL SEE. Antidisestablishmentarianism, floccinaucinihilipilification and pneumonoultramicroscopicsilicovolcanoconiosis
are long words. On 29 November 2026 at 20:49:07 the kettle boiled (again!), costing $3.50 or about 2,75 euros.""",
    "de": """Die Straße führt über einen Fluß, dessen Brücke größer ist als nötig. Übermorgen öffnet das Café für
Gäste aus Österreich; Donaudampfschifffahrtsgesellschaftskapitänsmützen hängen an der Wand. Ä, Ö und Ü sowie ß
kommen häufig vor. „Wer hat’s erfunden?“, fragte sie und lächelte müde.""",
    "fr": """L’été dernier, nous avons goûté à l'œuvre d'un maître pâtissier : crème brûlée, pâtes à choux, gâteau
d'anniversaire. Où est passé le garçon naïf ? « C'est ça », répondit-elle. Aujourd'hui, qu'est-ce qu'on mange ?""",
    "es": """¿Dónde está la niña que pidió piñones y jalapeños? ¡Qué pingüino más simpático! El año que viene
viajaremos a Córdoba con el señor Núñez.""",
    "pl": """Zażółć gęślą jaźń, powiedział źrebak, i pobiegł przez łąkę ku Łodzi. Święto trwało całą noc.""",
    "vi": """Tiếng Việt có nhiều dấu thanh: hỏi, ngã, nặng, sắc, huyền. Hôm nay trời đẹp quá, chúng ta đi chơi nhé.""",
    "tr": """İstanbul'da ılık bir akşam; çocuklar dondurma yiyor, ihtiyar balıkçı ağlarını topluyor.""",
    "ru": """Съешь ещё этих мягких французских булок, да выпей чаю. Вчера поезд опоздал на полчаса, и мы ждали на
перроне. Ёжик в тумане искал медвежонка; объём работ вырос вдвое.""",
    "uk": """Щедрий вечір, добрий вечір! Їжак з’їв яблуко, а ґава дивилася з ґанку.""",
    "el": """Το πλοίο φεύγει στις επτά το πρωί. Η θάλασσα ήταν ήρεμη και ο ουρανός γαλανός· ποιος ξέρει τι θα φέρει
η μέρα; Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.""",
    "he": """השמש זרחה מעל ההרים והילדים יצאו לשחק בחצר. שָׁלוֹם עֲלֵיכֶם, אמר הזקן.""",
    "ar": """ذهب الطالب إلى المكتبة ليقرأ كتابًا عن النجوم. السَّلامُ عَلَيْكُمْ وَرَحْمَةُ اللهِ. السعر ١٢٣٤٫٥٠ درهم.""",
    "fa": """می‌خواهم به خانه بروم؛ کتاب‌ها روی میز هستند. قیمت ۱۲۳۴ تومان است.""",
    "hi": """आज मौसम बहुत अच्छा है और बच्चे मैदान में खेल रहे हैं। क्या आप हिन्दी पढ़ सकते हैं? मूल्य ₹१२३४ है।""",
    "bn": """আমি বাংলায় গান গাই। বৃষ্টি পড়ে টাপুর টুপুর, নদে এল বান।""",
    "ta": """வணக்கம், இன்று மழை பெய்யும் என்று நினைக்கிறேன். தமிழ் எழுத்துக்கள் அழகானவை.""",
    "th": """วันนี้อากาศดีมาก เราไปเดินเล่นที่สวนสาธารณะกันเถอะ น้ำตกอยู่ไม่ไกลจากที่นี่ ราคา ๑๒๓ บาท""",
    "lo": """ສະບາຍດີ ມື້ນີ້ອາກາດດີຫຼາຍ""",
    "km": """សួស្តី តើអ្នកសុខសប្បាយទេ?""",
    "my": """မင်္ဂလာပါ နေကောင်းလား""",
    "ka": """გამარჯობა, როგორ ხარ? დღეს კარგი ამინდია.""",
    "hy": """Բարև ձեզ, ինչպե՞ս եք այսօր։""",
    "am": """ሰላም ለዓለም፤ ዛሬ ጥሩ ቀን ነው።""",
    "zh": """今天天气很好，我们一起去公园散步吧。他说：“明天会下雨吗？”图书馆里有三千五百本书，价格是１２３元。分布式推理
把模型切成若干层，每台机器只加载自己的部分。繁體中文也要測試：龍、龜、鬱。""",
    "ja": """昨日、友達と一緒に映画を見に行きました。とても面白かったです！カタカナのテスト：コンピューター、
サーバー、ﾊﾝｶｸ文字。「はい」と答えた。東京都の人口は約１４００万人です。""",
    "ko": """오늘은 날씨가 좋아서 산책을 갔습니다. 한국어 문장도 토큰으로 나뉩니다! ㅋㅋㅋ 가격은 3,500원.""",
}

CODE = r'''
int main(int argc, char **argv) { return argc > 1 ? atoi(argv[1]) : 0; }
    for (size_t i = 0; i < n; i++) { sum += a[i] * b[i]; }
static const uint8_t table[256] = { 0x00, 0xFF, 0x7f, 1u << 3, };
#define MAX(a, b) ((a) > (b) ? (a) : (b)) /* careful: evaluates twice */
	if (!p) goto out;	// tab-indented
template <typename T, size_t N> constexpr auto size(const T (&)[N]) noexcept -> size_t { return N; }
std::vector<std::pair<int, std::string>> v{{1, "one"}, {2, "two"}};
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
    @property
        return {k: v for k, v in sorted(d.items(), key=lambda kv: -kv[1]) if v >= 0.5}
print(f"{name!r:>10} = {value:.3f}", file=sys.stderr, end="\n\n")
x = [i ** 2 for i in range(10) if i % 2 == 0]; y = x[::-1]
async function load(url) { const r = await fetch(url); return r.ok ? r.json() : null; }
const f = ({a = 1, ...rest}) => `${a}-${JSON.stringify(rest)}`;
document.querySelectorAll('.item > a[href^="#"]').forEach(e => e.remove());
fn main() -> Result<(), Box<dyn Error>> { let mut v = vec![1, 2, 3]; v.retain(|&x| x != 2); Ok(()) }
impl<'a, T: 'a + Clone> Iterator for Windows<'a, T> { type Item = &'a [T]; }
func (s *Server) Handle(w http.ResponseWriter, r *http.Request) error { return nil }
SELECT u.id, COUNT(*) AS n FROM users u LEFT JOIN orders o ON o.user_id = u.id WHERE u.age >= 18 GROUP BY 1 HAVING n > 3;
public static void main(String[] args) throws IOException { System.out.println("hi"); }
for f in *.txt; do grep -nE '^[a-z]+=' "$f" | sed 's/=.*//' >> out.log 2>&1 || true; done
main = do { n <- readLn; mapM_ print [x * 2 | x <- [1 .. n], odd x] }
(defn add [a b] (+ a b)) ; a comment
.nav > li:hover::before { content: "\201C"; margin: -1px 0 0 .5em; color: #0af; }
<div class="row" data-id="42"><p>Hello&nbsp;&amp; welcome</p><!-- note --></div>
{"name": "strata", "version": [0, 1, 0], "ok": true, "none": null, "pi": 3.14159, "esc": "a\"b\\c\u00e9"}
key: value # yaml
  - item: [1, 2, 3]
    nested: {a: b, "c d": 'e'}
git commit -m "fix: don't read past the end" && git push --force-with-lease origin HEAD:refs/heads/main
ls -la | awk '{ print $5, $9 }' | sort -rn | head -20
mov rax, qword ptr [rbp - 0x18] ; lea rcx, [rax + 4*rdx]
\begin{equation} E = mc^2 \int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2} \end{equation}
# Heading with `code` and **bold** text
| column | other | third |
|:-------|------:|:-----:|
1. First item with a [link](https://example.org/a_b?c=d&e=f#g "title")
- [x] done - [ ] not done ~~struck~~ ==marked== ![img](x.png)
> quoted > text >> more
```python
---
=====
~~~~
a ~= b; !x; x ?? y; a?.b; a ||= b; c &&= d; p->q; r::s; t => u; v <=> w; <<= >>= >>> ... .. ::: ;;
/*+-=~^%$#@!&|\?<>,.;:'"`()[]{}_*/
~~~~ ~a~ ~= =~ ~/home ~ ~~ a~b 1~2 ~é ~中 !~ ~! ^~^ `~` ~\ $~ ~$ ~1 ~~x
'''

EMOJI = ["😀", "😂", "🤔", "👍", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵", "🏴‍☠️", "❤️", "✨", "🚀", "🧑🏿‍🚒", "☕", "1️⃣", "♻️", "🫠", "🀄"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "[INST]",
            "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|begin_of_text|>", "<|eot_id|>", "<repo_name>", "<file_sep>",
            "<jupyter_start>", "<0x0A>", "<|user|>", "<think>", "</think>", "<tool_call>", "<|im_start", "im_end|>", "<|",
            "|>", "<issue_start>", "<empty_output>", "<filename>", "<gh_stars>"]
SPACES = [" ", "  ", "   ", "    ", "        ", "\t", "\t\t", " \t", "\t ", "\r", "\r\r", " \r ", "\u00a0", "\u00a0 ", " \u00a0",
          "\u2003", "\u2009", "\u3000", "\u1680", "\u2028", "\u2029", "\u202f", "\u205f", "\u0085", "\x0b", "\x0c", "\u200b",
          "\u200d", "\u200c", "\u2060", "\ufeff", "\u180e", "\x1c", "\x1f", "\u00ad", "\u200e", "\u200f"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'VE", "'M", "'LL", "'D", "'Re", "'vE", "'Ll",
                "’s", "’t", "’LL", "'x", "'", "''", "'\u017f", "'st", "'sS", "'tis", "'reef", " 's", " 'll", "'ll's", "'d've"]
COMBINING = ["e\u0301", "a\u0308", "n\u0303o", "z\u0351\u036b\u0343a\u0335l\u0337g\u0348o", "\u0301", " \u0301x", "1\u0301", "!\u0301",
             "क\u094dष", "ก\u0e48\u0e33", "\u05e9\u05b8\u05c1", "\u1100\u1161\u11a8", "a\u20dd", "\u0300\u0301\u0302", "o\u0328\u0304"]
NUMBERS = ["0", "7", "42", "007", "1234", "12345", "123456", "1234567", "3.14159", "-1", "+1e-10", "1,000,000", "0xDEADBEEF",
           "1_000", "٣٤", "१२३४५", "Ⅷ", "½", "²³", "①②", "１２３４", "๑๒๓", "1st", "2nd", "v2.10.3", "192.168.0.1", "50%", "#1",
           "9" * 17, "8" * 40, "1/2", "10:30", "2026-11-29", "x1y2z3", "3D", "²", "x²+y²", "〇", "一二三", "𝟙𝟚𝟛", "௧௨௩"]
SYMBOLS = ["!", "!!", "?!", "...", "…", "—", "–", "--", "---", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "::", "//", "/*",
           "*/", "()", "[]", "{}", "<>", "@", "#", "$", "%", "^", "&", "*", "~", "`", "```", "\\", "|", "€", "£", "¥", "₿", "°",
           "±", "×", "÷", "≠", "≤", "∑", "∞", "∂", "√", "→", "⇒", "★", "♪", "§", "¶", "†", "•", "«", "»", "„", "“", "”", "‘", "’",
           "。", "，", "、", "「", "」", "！", "？", "・", "〜", "～", "，。", "¿", "¡", "؟", "،", "।", "፤", "｜", "▁", "\ufffd", "𝄞", "𝒳",
           "␀", "─│┌", "█▓░", "⠿", "\ue000", "\U0010fffd", "𐍈", "ꙮ", "﷽"]
LONG = ["a" * 130, "ab" * 90, "Donaudampf" * 14, "=" * 150, "-" * 77, "." * 99, " " * 120 + "x", "x" + " " * 64, "\t" * 50 + "y",
        "👍" * 40, "中" * 120, "é" * 100, "и" * 150, "ก" * 120, "a1" * 60, "A" * 80 + "b" * 80, "_" * 70, "!?" * 50, "\u00a0" * 40,
        "Ω" * 61 + "=" * 33, "xyz" * 70 + "123" * 30, "0" * 120, "\r" * 30 + "z", "http" * 20]


def sentences():
    out = []
    for text in PROSE.values():
        flat = " ".join(text.split())
        out.append(flat)
        words = flat.split(" ")
        for size in (3, 6, 10):
            for i in range(0, max(1, len(words) - size + 1), size):
                out.append(" ".join(words[i:i + size]))
        if " " not in flat[:60] or len(words) < 25:
            for i in range(0, len(flat), 9):
                out.append(flat[i:i + 9])
    return [s for s in out if s]


def urls():
    hosts = ["example.org", "sub.example.com:8080", "münchen.example", "127.0.0.1", "[::1]"]
    for i, h in enumerate(hosts * 6):
        path = "/".join(R.choice(["a", "b-c", "index.html", "~user", "%20x", "v1", "日本", "data_2026.tar.gz"]) for _ in range(3))
        yield f"{R.choice(['http', 'https', 'ftp', 'HTTPS'])}://{h}/{path}?q={i}&r=%C3%A9#frag-{i * 37}"
    for who in ("jane.doe", "o'neil+tag", "x_y-z"):
        yield f"mail {who}@example.org, or <{who.upper()}@EXAMPLE.ORG>; file:///etc/hosts C:\\Users\\{who}\\x.txt"


def spaced():
    """White space of every kind between, before and after words."""
    for s in SPACES:
        for pattern in ("a{0}b", "{0}word", "word{0}", "{0}{0}word word", "1{0}2", "!{0}!", "é{0}中{0}x", "{0}", " {0}", "{0} ", "x{0} y",
                        "{0}'s", "end.{0}Next"):
            yield pattern.format(s)


def contractions():
    for c in CONTRACTIONS:
        for pattern in ("I{0}", "it{0} fine", "{0}", "DON{0} x", "dog{0}dog", "é{0}", "1{0}", "({0})"):
            yield pattern.format(c)


def specials():
    for s in SPECIALS:
        for pattern in ("{0}", "a {0} b", "{0}user", "x{0}", "{0}{0}", " {0} ", "{0}\r", "é{0}中"):
            yield pattern.format(s)
    yield "<|im_start|>system\rYou are helpful.<|im_end|><|im_start|>user Hi<|im_end|><|im_start|>assistant"
    yield "<|im_start|><|im_end|><|endoftext|><|im_start|>x<|im_end"


def mixed(count):
    """Lines of random tokens from all lists, joined with nothing, a space or other white space."""
    words = " ".join(PROSE.values()).split()
    pools = [words, words, words, EMOJI, SPECIALS, SPACES, CONTRACTIONS, COMBINING, NUMBERS, SYMBOLS]
    for _ in range(count):
        line = ""
        for _ in range(R.randint(1, 14)):
            line += R.choice(R.choice(pools)) + R.choice(["", "", " ", " ", "  ", "\t"])
        yield line


def code_points(count):
    """Random assigned-looking characters from many blocks."""
    blocks = [(0x00A1, 0x024F), (0x0250, 0x02FF), (0x0370, 0x03FF), (0x0400, 0x052F), (0x0531, 0x0587), (0x05D0, 0x05EA),
              (0x0621, 0x064A), (0x0904, 0x0939), (0x0E01, 0x0E3A), (0x10A0, 0x10FF), (0x1E00, 0x1EFF), (0x2010, 0x2027),
              (0x2030, 0x205E), (0x2070, 0x209C), (0x20A0, 0x20BF), (0x2100, 0x218B), (0x2190, 0x23FF), (0x2460, 0x24FF),
              (0x2500, 0x27BF), (0x3001, 0x303F), (0x3041, 0x30FF), (0x3105, 0x312F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
              (0xAC00, 0xD7A3), (0xF900, 0xFAD9), (0xFE30, 0xFE4F), (0xFF01, 0xFFEE), (0x10330, 0x1034A), (0x1D400, 0x1D7FF),
              (0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x20000, 0x2A6DF)]
    for _ in range(count):
        lo, hi = R.choice(blocks)
        yield "".join(chr(R.randint(lo, hi)) + R.choice(["", "", "", " "]) for _ in range(R.randint(1, 12)))


def corpus():
    lines = ["", " ", "  ", "a", "Hello, world!", "hello world", " Hello", "Hello "]
    lines += sentences()
    lines += CODE.strip("\n").split("\n")
    lines += list(urls()) + list(spaced()) + list(contractions()) + list(specials())
    for pool in (EMOJI, COMBINING, NUMBERS, SYMBOLS):
        for s in pool:
            lines += [s, f"a{s}b", f" {s} {s}", f"{s}{s} x"]
    lines += LONG + [f"word {s} word" for s in LONG]
    lines += list(code_points(150)) + list(mixed(500))
    for line in lines:
        assert "\n" not in line
    return lines


def escape(data):
    out = ""
    for b in data:
        if b == 0x0A:
            out += "\\n"
        elif b == 0x5C:
            out += "\\\\"
        elif 0x20 <= b < 0x7F:
            out += chr(b)
        else:
            out += f"\\x{b:02X}"
    return out


def multiline(lines):
    """Texts with line breaks, as bytes; all are valid UTF-8, because there the peer's ids are defined."""
    out = [b"\n", b"\n\n", b" \n", b"\n ", b"\r\n", b"\r\n\r\n", b"a\nb", b"a\n\nb", b"a \n b", b"a\n  \n\n  b", b"\n\n\nx", b"x\n\n\n",
           b"x\n \n \n y", b"\t\n\t\n", b"if x:\n    y()\n\n\n    z()\n", b"a\r\nb\r\n", b"!\n", b"!!\n\n!", b"\n!\n", b"1\n2\n3",
           b"end.\nNext", b"'\ns", b"\n's", b"\x00", b"a\x00b", b"\x00\x00\n", b"\x01\x02\x7f", b"\n" * 40, b" \n" * 30, b"  \n" * 20 + b"x",
           "\u2028\n\u2029".encode(), "\u3000\n\u3000x".encode(), "中\n文。\n".encode(), "<|im_start|>user\nHi\n<|im_end|>\n<s>\n</s>".encode(),
           b"x\x0b\n\x0cy", b"\n" + b" " * 60 + b"\n" * 5 + b"z"]
    for _ in range(160):
        parts = [R.choice(lines) for _ in range(R.randint(2, 5))]
        out.append(R.choice(["\n", "\n\n", "\r\n", " \n", "\n  ", "\n\t"]).join(parts).encode())
    return out


def mixtures(count):
    """Texts of random units, many of one class in a row; what the classes are is the pre-tokenizers' business."""
    pools = [" ", " ", "  ", "\t", "\n", "\n", "\r\n", "\r", "\u00a0\u3000\u2003\u0085\u2028\u1680", "\x0b\x0c", "\x00\x01\x1c\x1f\x7f",
             "abcdefgstmlrv", "ABCDEFGSTMLRV", "éñßçþœ", "ÉÑÇÞŒ", "ǅǈΆαΩдЖ", "ʰʲˇªºⁿ", "中文字龍三", "〆々〇㐀𠀀豈", "かなカナー", "한글ㅋㄱ", "ㄅㄆㄇ",
             "กขค", "\u0e48\u0e34", "\u0301\u0308\u0327", "\u20e3\ufe0f", "हिन्दी", "اللغة", "שלום", "\u200c\u200d", "\u200b\ufeff\u180e",
             "0123456789", "0123456789", "०१२٣٤", "½²①Ⅷ", "１２３", "'", "'", "’‘“”…—", "!?.,;:", "()[]{}", "/\\/", "$+<=>^~|`", "€₿°©", "、。，：；！",
             "《》「」", "︰﹏", "😀🚀", "\U0001f1e9\U0001f1ea", "_-*#&%@\"", "\u0378\ue000\U000e0001", "ꩠꩡꧠ", "ເແ", "កខ", "ကခ", "ｶﾅ", "⼀⼆", "𝒜𝟙",
             "ᏸꭰ", "ႠᲐ", "۔،।"]
    units = ["'s", "'T", "'re", "'VE", "'m", "'ll", "'D", "IMGIMGABCZ", "<sentinel:42>", "123456", "1234567", "12_3", "12a", "x1234",
             "HTTPServer", "iPhone", "McDonald", "éABC", "ABCé", "ÀÉ", "don't", "IT'S", "a b c", " a  b", "   ", "        ", "\n\n\n", " \n "]
    for _ in range(count):
        out = ""
        for _ in range(R.randint(2, 9)):
            if R.random() < 0.2:
                out += R.choice(units)
                continue
            pool = R.choice(pools)
            out += "".join(R.choice(pool) for _ in range(R.choice([1, 1, 1, 2, 2, 3, 4, 7])))
        yield out
    for n in (511, 512, 513, 600, 1030):  # runs at the borders of jais-2's pieces
        yield "a" + " " * n + "b"
        yield "\t" * n


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: gencorpus.py OUT_DIR")
    out = Path(sys.argv[1])
    lines = corpus()
    (out / "corpus.txt").write_bytes("".join(line + "\n" for line in lines).encode())
    (out / "text-escaped.txt").write_bytes("".join(escape(t) + "\n" for t in multiline(lines)).encode())
    texts = [t.encode() for t in mixtures(1200)]
    (out / "mixtures-escaped.txt").write_bytes("".join(escape(t) + "\n" for t in texts).encode())
    print(f"{len(lines)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
