/*
 * The table of pre-tokenizers. See vocab_rules.h.
 *
 * Character classes of the patterns: white space is written out because PCRE2 counts U+180E as such and the tokenizers
 * do not. The others are PCRE2's general categories with what Unicode 15.0 and 15.1 added, so that the cut is the same
 * with a PCRE2 that knows Unicode 14 only.
 */
#include "text/vocab_rules.h"

#define SPACE "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define LETTER                                                                                                         \
    "\\p{L}\\x{1123F}\\x{11240}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}"    \
    "\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{2B739}"                    \
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define MARK                                                                                                           \
    "\\p{M}\\x{CF3}\\x{ECE}\\x{10EFD}-\\x{10EFF}\\x{11241}\\x{11F00}\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"         \
    "\\x{11F3E}-\\x{11F42}\\x{13440}\\x{13447}-\\x{13455}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}"
#define NUMBER "\\p{N}\\x{11F50}-\\x{11F59}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}"
#define PUNCT "\\p{P}\\x{11B00}-\\x{11B09}\\x{11F43}-\\x{11F4F}"
#define SYMBOL                                                                                                         \
    "\\p{S}\\x{2FFC}-\\x{2FFF}\\x{31EF}\\x{1F6DC}\\x{1F774}-\\x{1F776}\\x{1F77B}-\\x{1F77F}\\x{1F7D9}"                 \
    "\\x{1FA75}-\\x{1FA77}\\x{1FA87}\\x{1FA88}\\x{1FAAD}-\\x{1FAAF}\\x{1FABB}-\\x{1FABD}\\x{1FABF}\\x{1FACE}\\x{"      \
    "1FACF}"                                                                                                           \
    "\\x{1FADA}\\x{1FADB}\\x{1FAE8}\\x{1FAF7}\\x{1FAF8}"

#define CONTRACTION "'s|'t|'re|'ve|'m|'ll|'d"
#define CONTRACTION_ANY_CASE "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
/* A run of white space that ends before a line break, then one that leaves its last character to the next word. */
#define SPACE_RUNS "[" SPACE "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

/* `word` and `other` are what words and the rest are made of. */
#define CL100K_WORDS(contraction, word, digits, other, tail)                                                           \
    contraction "[^\\r\\n" LETTER NUMBER "]?" word "|[" NUMBER "]" digits "| ?[^" SPACE other "]+" tail "|"
#define CL100K(word, digits, other, tail)                                                                              \
    CL100K_WORDS(CONTRACTION_ANY_CASE "|", "[" word "]+", digits, other, tail) SPACE_RUNS
/* `capital` and `small` are what the two parts of a word are made of. */
#define O200K(capital, small, contraction, digits, tail)                                                               \
    "[^\\r\\n" LETTER NUMBER "]?" capital "*" small "+" contraction "|[^\\r\\n" LETTER NUMBER "]?" capital "+" small   \
    "*" contraction "|[" NUMBER "]" digits "| ?[^" SPACE LETTER NUMBER "]+" tail "|" SPACE_RUNS
#define ASCII_CASED(word, digits, contraction)                                                                         \
    O200K("(?:(?![a-z])[" word "])", "(?:(?![A-Z])[" word "])", contraction, digits, "[\\r\\n/]*")
#define OPTIONAL_CONTRACTION "(?:" CONTRACTION_ANY_CASE ")?"

static const char any_of_break[] = "\r\n", break_or_slash[] = "\r\n/";

/* ---- runs of one kind ---- */

static const struct vocab_rule digit = {
    .pattern = "[" NUMBER "]", .match = vocab_match_run, .word = CLASS_NUMBER, .max = 1};
static const struct vocab_rule digits3 = {
    .pattern = "[" NUMBER "]{1,3}", .match = vocab_match_run, .word = CLASS_NUMBER, .max = 3};
static const struct vocab_rule digits = {.pattern = "[" NUMBER "]+", .match = vocab_match_run, .word = CLASS_NUMBER};
static const struct vocab_rule three_ascii_digits = {
    .pattern = "[0-9][0-9][0-9]", .match = vocab_match_exact, .ascii = "0123456789", .max = 3};
static const struct vocab_rule line_break = {
    .pattern = "[\\r\\n]", .match = vocab_match_run, .ascii = any_of_break, .max = 1};
static const struct vocab_rule lines = {.pattern = "[^\\n]+|\\n+", .match = vocab_match_lines};
static const struct vocab_rule punct_runs = {
    .pattern = "[" PUNCT "$+<=>^~|]+", .match = vocab_match_run, .word = CLASS_PUNCT, .ascii = "$+<=>^~|"};
static const struct vocab_rule falcon_punct = {
    .pattern = "[" PUNCT "$+<=>^~|`]+", .match = vocab_match_run, .word = CLASS_PUNCT, .ascii = "$+<=>^~|`"};
static const struct vocab_range cjk_range[] = {{0x4E00, 0x9FA5}, {0x3040, 0x30FF}, {0}};
static const struct vocab_rule cjk = {.pattern = "[@]+", .match = vocab_match_run, .range = cjk_range};

/* ---- GPT-2 ---- */

static const struct vocab_rule gpt2 = {.pattern =
                                           CONTRACTION "| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER
                                                       "]+|[" SPACE "]+(?![^" SPACE "])",
                                       .match = vocab_match_gpt2,
                                       .other = CLASS_LETTER | CLASS_NUMBER};

/* ---- cl100k_base and its relatives ---- */

#define CL100K_RULE(digits_, max_)                                                                                     \
    {                                                                                                                  \
        .pattern = CL100K(LETTER, digits_, LETTER NUMBER, "[\\r\\n]*"), .match = vocab_match_cl100k,                   \
        .word = CLASS_LETTER, .other = CLASS_LETTER | CLASS_NUMBER, .max = max_, .contractions = true,                 \
        .tail = any_of_break                                                                                           \
    }
static const struct vocab_rule llama3 = CL100K_RULE("{1,3}", 3);
static const struct vocab_rule qwen2 = CL100K_RULE("", 1);
static const struct vocab_rule minicpm = CL100K_RULE("+", 0);
static const struct vocab_rule qwen35 = {.pattern = CL100K(LETTER MARK, "", LETTER MARK NUMBER, "[\\r\\n]*"),
                                         .match = vocab_match_cl100k,
                                         .word = CLASS_LETTER | CLASS_MARK,
                                         .other = CLASS_LETTER | CLASS_MARK | CLASS_NUMBER,
                                         .max = 1,
                                         .contractions = true,
                                         .tail = any_of_break};
static const struct vocab_rule seed_coder = {.pattern = CL100K(LETTER, "", LETTER NUMBER, ""),
                                             .match = vocab_match_cl100k,
                                             .word = CLASS_LETTER,
                                             .other = CLASS_LETTER | CLASS_NUMBER,
                                             .max = 1,
                                             .contractions = true,
                                             .tail = ""};
static const struct vocab_rule ufakzeka = {.pattern = CL100K_WORDS("", "[" LETTER "]+", "", LETTER NUMBER, "[\\r\\n]*")
                                               SPACE_RUNS,
                                           .match = vocab_match_cl100k,
                                           .word = CLASS_LETTER,
                                           .other = CLASS_LETTER | CLASS_NUMBER,
                                           .max = 1,
                                           .tail = any_of_break};
static const struct vocab_range joiners[] = {{0x200C, 0x200D}, {0}};
static const struct vocab_rule k2_horizon = {
    .pattern = "'\\x{17F}|" CL100K(LETTER MARK "@", "{1,3}", LETTER NUMBER, "[\\r\\n]*"),
    .match = vocab_match_k2_horizon,
    .word = CLASS_LETTER | CLASS_MARK,
    .other = CLASS_LETTER | CLASS_NUMBER,
    .max = 3,
    .contractions = true,
    .tail = any_of_break,
    .range = joiners};
static const struct vocab_rule jais2 = {
    .pattern = CL100K_WORDS(CONTRACTION_ANY_CASE "|", "[" LETTER "]+", "{1,3}", LETTER NUMBER,
                            "[\\r\\n]*") "[" SPACE "]*[\\r\\n]+|(?:[" SPACE "]{512}|[" SPACE "]{256}|[" SPACE
                                         "]{128}|[" SPACE "]{64}|[" SPACE "]{32}|[" SPACE "]{16}|[" SPACE "]{8}|[" SPACE
                                         "]{4}|[" SPACE "]{1,2})(?![^" SPACE "])|[" SPACE "]",
    .match = vocab_match_jais,
    .word = CLASS_LETTER,
    .other = CLASS_LETTER | CLASS_NUMBER,
    .max = 3,
    .contractions = true,
    .tail = any_of_break};
static const struct vocab_rule exaone_moe = {
    .pattern = CL100K_WORDS(CONTRACTION_ANY_CASE "|", "(?:[" LETTER "][" MARK "]*+(?: [" LETTER "][" MARK "]*+)*+)++",
                            "", LETTER NUMBER, "[\\r\\n/]?") SPACE_RUNS,
    .match = vocab_match_exaone,
    .word = CLASS_LETTER,
    .other = CLASS_LETTER | CLASS_NUMBER,
    .max = 1,
    .contractions = true,
    .tail = ""};

/* ---- o200k_base and its relatives ---- */

static const struct vocab_rule gpt4o = {.pattern = ASCII_CASED(LETTER, "{1,3}", OPTIONAL_CONTRACTION),
                                        .match = vocab_match_o200k,
                                        .word = CLASS_LETTER,
                                        .other = CLASS_LETTER | CLASS_NUMBER,
                                        .max = 3,
                                        .contractions = true,
                                        .tail = break_or_slash};
static const struct vocab_rule marked_o200k = {.pattern = ASCII_CASED(LETTER MARK, "{1,3}", OPTIONAL_CONTRACTION),
                                               .match = vocab_match_o200k,
                                               .word = CLASS_LETTER | CLASS_MARK,
                                               .other = CLASS_LETTER | CLASS_NUMBER,
                                               .max = 3,
                                               .contractions = true,
                                               .tail = break_or_slash};
static const struct vocab_rule tekken = {.pattern = ASCII_CASED(LETTER, "", ""),
                                         .match = vocab_match_o200k,
                                         .word = CLASS_LETTER,
                                         .other = CLASS_LETTER | CLASS_NUMBER,
                                         .max = 1,
                                         .tail = break_or_slash};
/* Written for o200k's words, but llama.cpp takes all of \p{Lu}, \p{Ll} and so on for any letter: no word is cut by
 * case. */
#define WORDS_ALONE(word, digits, tail)                                                                                \
    CL100K_WORDS("", "[" word "]+" OPTIONAL_CONTRACTION, digits, LETTER NUMBER, tail) SPACE_RUNS
static const struct vocab_rule youtu_words = {.pattern = WORDS_ALONE(LETTER MARK, "", "[\\r\\n/]*"),
                                              .match = vocab_match_o200k,
                                              .word = CLASS_LETTER | CLASS_MARK,
                                              .other = CLASS_LETTER | CLASS_NUMBER,
                                              .max = 1,
                                              .contractions = true,
                                              .letters = VOCAB_CASE_NONE,
                                              .tail = break_or_slash};
static const struct vocab_rule aya_words = {.pattern = WORDS_ALONE(LETTER MARK, "{1,3}", "[\\r\\n/]*"),
                                            .match = vocab_match_o200k,
                                            .word = CLASS_LETTER | CLASS_MARK,
                                            .other = CLASS_LETTER | CLASS_NUMBER,
                                            .max = 3,
                                            .contractions = true,
                                            .letters = VOCAB_CASE_NONE,
                                            .tail = break_or_slash};
static const struct vocab_range han[] = {{0x3400, 0x4DBF},
                                         {0x4E00, 0x9FFF},
                                         {0xF900, 0xFAFF},
                                         {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2EBEF},
                                         {0x2F800, 0x2FA1F},
                                         {0}};
static const struct vocab_rule kimi_k2 = {.pattern =
                                              "[@]+|" CL100K_WORDS("", "(?:(?![@])[" LETTER "])+" OPTIONAL_CONTRACTION,
                                                                   "{1,3}", LETTER NUMBER, "[\\r\\n]*") SPACE_RUNS,
                                          .match = vocab_match_kimi,
                                          .word = CLASS_LETTER,
                                          .other = CLASS_LETTER | CLASS_NUMBER,
                                          .max = 3,
                                          .contractions = true,
                                          .letters = VOCAB_CASE_NONE,
                                          .tail = any_of_break,
                                          .range = han};
static const struct vocab_rule youtu_asian = {
    .pattern =
        "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}"
        "\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|"
        "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"};

/* ---- DeepSeek ---- */

static const struct vocab_rule deepseek_words = {.pattern = "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n" LETTER PUNCT SYMBOL
                                                            "]?[" LETTER MARK "]+"
                                                            "| ?[" PUNCT SYMBOL "]+[\\r\\n]*|" SPACE_RUNS,
                                                 .match = vocab_match_deepseek};
static const struct vocab_rule spaced_letters = {
    .pattern = "[" SPACE "]?[" LETTER "]+", .match = vocab_match_spaced_run, .word = CLASS_LETTER};
static const struct vocab_rule spaced_punct = {
    .pattern = "[" SPACE "]?[" PUNCT "]+", .match = vocab_match_spaced_run, .word = CLASS_PUNCT};
static const struct vocab_range deepseek_asian_range[] = {{0x4E00, 0x9FA5}, {0x0800, 0x4E00}, {0xAC00, 0xD7FF}, {0}};
static const struct vocab_rule deepseek_asian = {
    .pattern = "(?:(?![" SPACE "])[@])+", .match = vocab_match_run, .range = deepseek_asian_range};
static const struct vocab_rule last_space = {.pattern = "[" SPACE "]+\\z", .match = vocab_match_last_space};
/* Letters of the scripts that tell capital from small, as DeepSeek LLM lists them. */
static const struct vocab_range cased_letters[] = {
    {'A', 'Z'},         {'a', 'z'},         {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},
    {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},
    {0x376, 0x377},     {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},
    {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},
    {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943}, {0}};
static const struct vocab_rule spaced_cased = {
    .pattern = "[" SPACE "]?[@]+", .match = vocab_match_spaced_run, .range = cased_letters};
static const struct vocab_range wide_punct[] = {
    {'!', '/'}, {':', '~'}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0}};
static const struct vocab_rule spaced_wide_punct = {
    .pattern = "[" SPACE "]?(?:(?![" SPACE "])[@])+", .match = vocab_match_spaced_run, .range = wide_punct};

/* ---- others ---- */

static const struct vocab_rule bloom = {
    .pattern = " ?[^" SPACE "(|.,!?)\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C}]+"};
static const struct vocab_rule threes = {.pattern = "[^" NUMBER "]*+(?:\\z|[" NUMBER "]{1,3}(?=(?:[" NUMBER
                                                    "]{3})*(?![" NUMBER "])))",
                                         .match = vocab_match_threes,
                                         .word = CLASS_NUMBER};
#define THREES_LEFT "(?=(?:[0-9]{3})+(?![0-9]))"
static const struct vocab_rule superbpe_threes = {.pattern = THREES_LEFT "(?s:.(?:(?!" THREES_LEFT ").)*)",
                                                  .match = vocab_match_grouped};
static const struct vocab_range afmoe_range[] = {{0x4E00, 0x9FFF}, {0x3400, 0x4DBF},
                                                 {0x8C48, 0xFAFF}, {0x3040, 0x30FF},
                                                 {0xFF65, 0xFF9F}, {0x2F00, 0x2FDF},
                                                 {0x0E40, 0x0EFF}, {0x1780, 0x17FF},
                                                 {0x1000, 0x109F}, {0xAA60, 0xAA7F},
                                                 {0xA9E0, 0xA9FF}, {0xAC00, 0xD7AF},
                                                 {0x1100, 0x11FF}, {0}};
static const struct vocab_rule afmoe_asian = {.pattern = "[@]+", .match = vocab_match_run, .range = afmoe_range};
static const struct vocab_rule sentinel = {.pattern = "<sentinel:[0-9]+>"};
static const struct vocab_rule image = {.pattern = "IMGIMG[A-I]{1,4}Z"};
static const struct vocab_rule indent = {.pattern = "[\\t\\n]|    |  "};
static const struct vocab_rule any_punct = {.pattern = "[" PUNCT "!-/:-@\\[-`{-~]",
                                            .match = vocab_match_run,
                                            .word = CLASS_PUNCT,
                                            .ascii = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
                                            .max = 1};

const struct vocab_family vocab_families[] = {
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     .pass = {&llama3},
     .ignore_merges = true,
     .add_bos = true},
    {.names = " glm4 glm5 chatglm-bpe dbrx smaug-bpe ", .pass = {&llama3}},
    {.names = " qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 bailingmoe bailingmoe2 "
              "llada-moe ",
     .pass = {&qwen2}},
    {.names = " laguna ", .pass = {&lines, &qwen2}},
    {.names = " qwen35 ", .pass = {&qwen35}},
    {.names = " seed-coder ", .pass = {&seed_coder}},
    {.names = " minicpm5 ", .pass = {&digits3, &minicpm}, .ignore_merges = true},
    {.names = " ufakzeka ", .pass = {&ufakzeka}},
    {.names = " k2-horizon ", .pass = {&k2_horizon}},
    {.names = " jais-2 ", .pass = {&jais2}},
    {.names = " exaone-moe ", .pass = {&exaone_moe}},
    {.names = " gpt-4o llama4 kanana2 talkie minimax-m2 ", .pass = {&gpt4o}},
    {.names = " tekken ", .pass = {&tekken}, .ignore_merges = true, .add_bos = true},
    {.names = " inkling ", .pass = {&marked_o200k}},
    {.names = " granite-embed-multi-97m ", .pass = {&marked_o200k}, .ignore_merges = true},
    {.names = " tiny_aya cohere2moe ", .pass = {&threes, &aya_words}},
    {.names = " youtu ", .pass = {&youtu_asian, &youtu_words}, .ignore_merges = true},
    {.names = " kimi-k2 ", .pass = {&kimi_k2}},
    {.names = " gpt-2 phi-2 gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4 jina-es jina-de "
              "jina-v1-en roberta-bpe ",
     .pass = {&gpt2}},
    {.names = " jina-v2-es jina-v2-de jina-v2-code ", .pass = {&gpt2}, .lstrip = "<mask>"},
    {.names = " modern-bert ", .pass = {&gpt2}, .lstrip = "[MASK]"},
    {.names = " smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ", .pass = {&digit, &gpt2}},
    {.names = " falcon ", .pass = {&falcon_punct, &gpt2, &three_ascii_digits}},
    {.names = " default ", .pass = {&punct_runs, &gpt2, &digits, &three_ascii_digits}},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", .pass = {&digits3, &cjk, &deepseek_words}},
    {.names = " deepseek-coder ", .pass = {&line_break, &spaced_letters, &spaced_punct, &deepseek_asian, &digit}},
    {.names = " deepseek-llm ",
     .pass = {&line_break, &spaced_cased, &spaced_wide_punct, &last_space, &deepseek_asian, &digits}},
    {.names = " afmoe ", .pass = {&threes, &afmoe_asian, &deepseek_words}},
    {.names = " superbpe ", .pass = {&digits, &superbpe_threes}},
    {.names = " bloom gpt3-finnish poro-chat ", .pass = {&bloom}},
    {.names = " viking ", .pass = {&bloom, &digit}},
    {.names = " chameleon ", .pass = {&sentinel, &image, &indent, &digit, &any_punct, &gpt2}, .add_bos = true},
};
const int vocab_n_families = sizeof vocab_families / sizeof vocab_families[0];
