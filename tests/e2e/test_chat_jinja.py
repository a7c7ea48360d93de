"""Chat templates: every template and expression below gives what Python's jinja2 gives, errors included.

STRATA_TEMPLATES may name a folder with further templates (*.jinja), which are rendered and compared too.
"""
import datetime
import glob
import json
import os
import struct
import subprocess
import unittest

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import SandboxedEnvironment
except ImportError:
    jinja2 = None

import common

RENDER = os.path.join(common.BUILD, "tools", "render_chat")
NOW = 1796000000

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello!"}],
    "system": [{"role": "system", "content": "  You are terse. "}, {"role": "user", "content": "What is 2+2?\n"}],
    "turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."},
              {"role": "user", "content": " Grüße, 世界 😀 'quoted' \"double\" \\ <|im_end|>\n\nend "}],
    "system turns": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                     {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, {"role": "user", "content": "c"}],
    "empty": [],
    "wrong order": [{"role": "assistant", "content": "first"}, {"role": "user", "content": "second"}],
    "two users": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "?"}]}],
    "tool": [{"role": "user", "content": "weather?"},
             {"role": "assistant", "content": None, "tool_calls": [
                 {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 3, "exact": True, "x": None}}}]},
             {"role": "tool", "content": "{\"t\": 7.5}", "tool_call_id": "c1", "name": "weather"},
             {"role": "assistant", "content": "7.5 degrees"}, {"role": "user", "content": "thanks"}],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a \"city\" <now>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich", "Bern"]}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"]}}}]

# Templates in the styles of well-known models; the texts are our own.
TEMPLATES = {
    "plain turns": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "default system": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'}}{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' -}}
{% endif %}
""",
    "bracketed": """{% if messages and messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, ...') }}
    {%- endif %}
    {%- if loop.index0 == 0 and system_message != false %}
        {%- set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {%- else %}
        {%- set content = message['content'] %}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[Q] ' + content.strip() + ' [/Q]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}""",
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|head|>system<|/head|>\\n\\n" }}
{%- if tools is not none and tools is defined %}
    {{- "Environment: tools\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is defined and tools %}
    {{- "Answer with {\\"name\\": ..., \\"parameters\\": ...}.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|/turn|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n'+ message['content'] | trim + '<|/turn|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- tool_call.name + "(" }}
        {%- for arg_name, arg_val in tool_call.arguments | items %}
            {{- arg_name + '="' ~ arg_val ~ '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {{- ")" }}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
""",
    "tools and thoughts": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages and messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<r>\\n' }}
        {{- content }}
        {{- '\\n</r>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "turns with parts": """{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '</turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
""",
    "macros": """{%- macro show(content, level=1, mark='#') -%}
{%- if content is string -%}{{ mark * level }} {{ content }}
{%- elif content is sequence -%}{% for c in content %}{{ show(c.text | default('[' ~ c.type ~ ']'), level + 1) }};{% endfor %}
{%- else -%}none{%- endif -%}
{%- endmacro -%}
{#- a comment -#}
{% set header %}
  == {{ messages | length }} ==
{% endset %}
{{ header | trim }}
{% for m in messages if m.role != 'system' %}
  {% if m.role == 'tool' %}{% continue %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ m.role | upper }}: {{ show(m.content, mark='*') }}
  {% if loop.index == 3 %}{% break %}{% endif %}
{% else %}
nobody
{% endfor %}
{% generation %}{{ messages | map(attribute='role') | join(',') }}{% endgeneration %}
{% raw %}{{ not rendered }} {% if %}{% endraw %}
""",
    "whitespace": """  {% if true %}
  a
    {% endif %}
\tb {# c #}
{#- d -#}   e
  {%+ if true %}f{% endif +%}
g{%- if true %} h {%- endif %} i
{{ 1 }}
  {{- 2 -}}
  j
{% for x in [1, 2] %}
    {{ x }}
{% endfor %}

k
""",
    "scopes": """{% set x = 'outer' %}{% for i in range(3) %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}
{% if true %}{% set x = 'in if' %}{% endif %}{{ x }}{% set ns = namespace(n=0, list=[]) %}
{% for i in [3, 4] %}{% for j in 'ab' %}{% set ns.n = ns.n + i %}{{ loop.index }}{{ loop.first }}{{ loop.depth }}{% endfor %}{{ loop.last }}{% endfor %}{{ ns.n }}
{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% for k, v in {'x': 1, 'y': [2]}.items() %}{{ k }}={{ v }}{% endfor %}
{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}""",
    "line breaks": "a\r\nb\rc\n{% if true %}\r\nd{% endif %}\r\n\n",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 2 ** 10, 2 ** -1, 7.5 // 2, -7.5 % 2
1 == 1.0, true == 1, 'a' == 'a', none == none, [1] == [1], (1,) == [1], {'a': 1} == {'a': 1.0}, 'a' != 1
1 < 2 < 3, 1 < 3 < 2, 'a' < 'b', not 1 > 2, 2 >= 2 and 2 <= 2
'a' in 'abc', 'x' not in 'abc', 1 in [1, 2], 'k' in {'k': 0}, 'v' in {'k': 'v'}, x in [x], 'a' in x
not true and false or true, 0 or 'x', 1 and 'y', '' or none
'a' ~ 1 ~ none ~ true ~ 1.5, 'a' + 'b', [1] + [2], 'ab' * 3, 2 * 'x', [0] * 3, 'x' * -1
'yes' if 1 else 'no', 'yes' if 0, 'a' if 0 else 'b' if 0 else 'c'
-1, +1, - 1 | abs, -'3' | int, 2 + 3 | string | length
1.0, 0.1, 1e16, 1e15, 123456789.123, 1e-5, 0.0001, 1.5e300, 100.0, 1/3, 5 / 1
[1, 'a', none, true, 1.5, [2], {'k': 'v'}, ("t",), (), x]
'it\'s', "say \"hi\"", 'tab\tnl\\n', '\x41\u00e9\U0001F600', "a" 'b' "c"
['it\'s', "say \"hi\"", 'both \' and "', 'nl\n\t\\', 'é']
'hello'[0], 'hello'[-1], 'hello'[1:3], 'hello'[::-1], 'hello'[::2], 'hello'[10:], 'hello'[-3:], 'héllo😀'[-2:], 'abc'[5]
[1,2,3][0], [1,2,3][-1], [1,2,3][5], [1,2,3][1:], [1,2,3][::-1], [1,2,3][-2:-1], [1,2,3,4,5][4:1:-2], (1,2)[::-1], [1,2,3].0
{'a': {'b': [10, 20]}}.a.b[1], {'a': 1}['a'], {'a': 1}.missing, {1: 'one'}[1], {'items': 5}['items'], {true: 1}[1]
'  x y '.strip() ~ '|', 'xxabxx'.strip('x'), 'xxab'.lstrip('x'), 'abxx'.rstrip('x'), '\u00a0a\u3000'.strip(), 'éaé'.strip('é')
'a,b,,c'.split(','), ' a  b '.split(), 'a,b,c'.split(',', 1), 'a--b'.split('--'), ''.split(), ''.split(','), ' a b c '.split(none, 1), 'a.b.c'.rsplit('.', 1)
'Hello'.startswith('He'), 'Hello'.endswith(('x', 'lo')), 'Hello'.upper(), 'ÉCOLE straße'.lower(), 'straße é'.upper(), "they're ok".title(), 'hELLO wORLD'.capitalize()
'aXbX'.replace('X', '-'), 'aXbX'.replace('X', '-', 1), 'ab'.replace('', '.'), 'abc'.find('c'), 'abc'.find('z'), 'abab'.count('ab'), '-'.join(['a', 'b'])
'a\nb\r\nc\n'.splitlines(), '12'.isdigit(), ' '.isspace(), 'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py')
{'a': 1, 'b': 2}.items() | list, {'a': 1}.keys() | list, {'a': 1}.values() | list, {'a': 1}.get('a'), {'a': 1}.get('z'), {'a': 1}.get('z', 9)
' x ' | trim ~ '|', 'xx-xx' | trim('x'), 'Ab' | upper, 'Ab' | lower, "they're {ok} (now)-then" | title, 'aBC d' | capitalize
[1,2,3] | length, 'héé' | length, {} | length, x | length, [3,1,2] | sort | join(','), ['b','A','c'] | sort, ['b','A'] | sort(case_sensitive=true), [1,2,3] | sort(reverse=true)
['a','b'] | join, ['a',1,none] | join('-'), 'abc' | join('.'), [1,2] | first, [1,2] | last, 'abc' | first, [] | first, {'k': 1} | list, 'ab' | list
x | default('d'), '' | default('d'), '' | default('d', true), none | d('x'), none | default('x', boolean=true), 0 | default(5)
'a-b' | replace('-', '+'), '3' | int, 'z' | int, 'z' | int(7), 3.9 | int, '3.5' | float, '42abc' | int, ' 7 ' | int, true | int, -5 | abs, 5 | string
[1,2,3,4] | select('odd') | list, [1,2,3] | reject('eq', 2) | list, [0,1,''] | select | list, ['a',1] | select('string') | list, [1,2,3,4] | select('divisibleby', 2) | list
[{'n': 1, 'k': 'a'}, {'n': 2}] | map(attribute='n') | list, ['a','b'] | map('upper') | list, [{'n': {'m': 3}}] | map(attribute='n.m') | list, [{'n': 1}, {}] | map(attribute='n', default=0) | list, [' a '] | map('trim') | list
[{'r': 'u'}, {'r': 'a'}] | selectattr('r', 'equalto', 'u') | list, [{'r': 1}, {'r': 0}, {}] | selectattr('r') | list, [{'r': 1}, {}] | rejectattr('r', 'defined') | list, [{'r': 1}, {'r': 2}] | selectattr('r', '>', 1) | list
[1,2,3] | sum, [1,5,3] | max, [4,2] | min, [1,2,1,'a','A'] | unique | list, [{'v': 2}, {'v': 3}] | sum(attribute='v'), [1,2,3] | reverse | list, 'abc' | reverse
{'b': 1, 'a': [1, 2.5, none, true, 'é"\n<>&\u2028'], 'c': {}, 'd': []} | tojson
{'b': 1, 'a': [1, {'z': 'é'}], 'c': {}, 'd': []} | tojson(indent=2)
{'b': 1, 'a': 'é😀\x7f\x1f'} | tojson(ensure_ascii=true, sort_keys=true), [1, {'a': 2}] | tojson(separators=(',', ':')), {1: 2, none: 3, true: 4} | tojson, 'x' | tojson, 1.0 | tojson
'a\nb\n\nc' | indent, 'a\nb' | indent(2, true), 'a\n\nb\n' | indent(width=3, blank=true), '' | indent
x is defined, x is undefined, messages is defined, none is none, 'a' is string, 1 is number, 1.5 is float, 1 is integer, true is boolean, true is true, false is false, 1 is true
[] is iterable, 'a' is iterable, {} is mapping, [] is mapping, [] is sequence, 'a' is sequence, 1 is iterable, x is iterable, range is callable, 3 is odd, 4 is even, 9 is divisibleby 3, 9 is divisibleby(2)
1 is not none, 2 is eq 2, 2 is ne 3, 'a' is in ['a'], 1 is lt 2, 'ABC' is upper, 'abc' is lower, 'Abc' is upper, not x is defined, x is not defined and true
range(3) | list, range(1, 4) | list, range(5, 0, -2) | list, range(0) | list, dict(a=1, b='x'), namespace(a=1).a, namespace({'q': 2}).q
'%s is %d%%' % ('x', 5), '%s' % 'a', '%s-%s' % (none, 1.5)
strftime_now('%Y-%m-%d %H:%M'), bos_token, eos_token, add_generation_prompt, messages | length
messages[0].role if messages else 'none', messages[0]['content'], messages[-1].role, (messages | first).role, messages[0]
((1)), (1,), (), [], {}, [1,], {'a': 1,}, ((1, 2), 3)
true and 'x' or 'y', 1 if true else 2 | string, 1 + 1 ~ 2, 'a' ~ 'b' | upper, 2 * 3 ~ 4, not 0 == 1, 1 if x is defined else 2
'a' is string and 'b' is string, [1, 2] | length == 2, 'abc' | length > 2 and 'a' in 'abc', (x or 'z') | upper, x ~ 'q'
"{{ '}}' }}", '%}', {'a': {'b': 1}}, "{%", '#}'
'x' 'y' is string, 1_000, 10_0.5, 1e3
""".strip().split("\n")

FAILING = r"""
{{ x.y }}
{{ x['y'] }}
{{ x + 1 }}
{{ 1 + 'a' }}
{{ 'a' < 1 }}
{{ none.foo.bar }}
{{ [1] | nosuch }}
{{ 1 is nosuch }}
{{ x() }}
{{ 1() }}
{{ 1 / 0 }}
{{ [1,2][::0] }}
{{ 'a'.split('') }}
{{ 1 | length }}
{{ messages | tojson(nosuch=1) }}
{{ range(1, 2, 0) }}
{{ {[1]: 2} }}
{{ 'x'.nosuch() }}
{{ raise_exception('stop here') }}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a in 5 %}{% endfor %}
{% set messages.x = 1 %}
{{ 1 + }}
{{ (1 }}
{{ [1 }}
{{ 'open }}
{{ 1 1 }}
{{ a b }}
{{ }}
{% if %}{% endif %}
{% if 1 %}
{% for x in y %}{% endif %}
{% endfor %}
{% nosuch %}
{% set = 1 %}
{% set 1 = 1 %}
{% break %}
{% for %}{% endfor %}
{# open
{% raw %} open
{{ a | }}
{{ a is }}
{{ a. }}
{{ f(a=1, 2) }}
{{ $ }}
{{ 1 if }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=1) }}
{% macro m(a) %}{{ m(a) }}{% endmacro %}{{ m(1) }}
""".strip().split("\n")


def environment():
    """jinja2 as chat templates are rendered with."""
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(text):
        raise jinja2.exceptions.TemplateError(text)

    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


def model_template():
    """The chat template of the real model, if there is one."""
    if not common.MODEL:
        return {}
    with open(common.MODEL, "rb") as f:
        data = f.read(32 << 20)
    at = data.find(b"tokenizer.chat_template") + len(b"tokenizer.chat_template") + 4
    (n,) = struct.unpack_from("<Q", data, at)
    return {"the model's own": data[at + 8:at + 8 + n].decode()}


@unittest.skipUnless(jinja2, "the Python package jinja2 is not installed")
class ChatTemplates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.env = environment()
        cls.process = subprocess.Popen([RENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @classmethod
    def tearDownClass(cls):
        cls.process.communicate(timeout=10)

    def ours(self, template, variables):
        """("text", ...) or ("error", ...)."""
        request = {"template": template, "now": NOW, **variables}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        self.assertTrue(line, f"the renderer ended on {template!r}")
        return next(iter(json.loads(line).items()))

    def theirs(self, template, variables):
        try:
            flat = {**variables, **variables.get("extra", {})}
            return "text", self.env.from_string(template).render(**flat)
        except Exception as e:  # Python's own errors too: TypeError and the like
            return "error", f"{type(e).__name__}: {e}"

    def same(self, template, variables, name):
        kind, text = self.ours(template, variables)
        want_kind, want = self.theirs(template, variables)
        if kind != want_kind or (kind == "text" and text != want):
            self.fail(f"{name}\n--- Strata: {kind}\n{text}\n--- jinja2: {want_kind}\n{want}")

    def test_templates(self):
        templates = {**TEMPLATES, **model_template()}
        for path in glob.glob(os.path.join(os.environ.get("STRATA_TEMPLATES", "/nonexistent"), "*.jinja")):
            with open(path, encoding="utf-8") as f:
                templates[os.path.basename(path)] = f.read()
        count = 0
        for name, template in templates.items():
            for title, messages in CONVERSATIONS.items():
                for more in ({}, {"tools": TOOLS}, {"add_generation_prompt": True},
                             {"add_generation_prompt": True, "extra": {"enable_thinking": False}}):
                    variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False, **more}
                    with self.subTest(template=name, conversation=title, more=list(more)):
                        self.same(template, variables, f"{name}, {title}, {list(more)}")
                    count += 1
        print(f"{count} renderings compared", end=" ", flush=True)

    def test_expressions(self):
        variables = {"messages": CONVERSATIONS["turns"], "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
        for e in EXPRESSIONS:
            with self.subTest(expression=e):
                self.same("{% set v = (" + e + ") %}{{ v }}|{{ " + e + " }}", variables, e)

    def test_errors(self):
        variables = {"messages": CONVERSATIONS["turns"], "bos_token": "", "eos_token": "", "add_generation_prompt": False}
        for template in FAILING:
            with self.subTest(template=template):
                kind, text = self.ours("\n\n" + template, variables)
                want, _ = self.theirs("\n\n" + template, variables)
                self.assertEqual((kind, want), ("error", "error"), text)
                self.assertRegex(text, r"^chat template: line \d+: .+")

    def test_unsupported_is_named(self):
        for template, word in (("{% include 'x' %}", "include"), ("{% block a %}{% endblock %}", "block"), ("{{ 1 | batch(2) }}", "batch"),
                               ("{% for a in b recursive %}{% endfor %}", "recursive"), ("{{ f(*a) }}", "*"), ("{{ '\\N{DASH}' }}", "\\N"),
                               ("{% filter upper %}{% endfilter %}", "filter"), ("{% call f() %}{% endcall %}", "call")):
            kind, text = self.ours("\n" + template, {"messages": []})
            self.assertEqual(kind, "error")
            self.assertIn("line 2: ", text)
            self.assertIn(word, text)
            self.assertIn("not supported", text)

    def test_limits(self):
        for template in ("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
                         "{{ 'x' * 1000000000 }}", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "{{ " + "-" * 500 + "1 }}",
                         "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                         "{{ " + " + ".join(["1"] * 5000) + " }}", "{% if 1 %}" * 500 + "{% endif %}" * 500,
                         "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "{{ 9223372036854775807 + 1 }}", "{{ 2 ** 64 }}",
                         "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ [[]] * 100000000 }}", "{{ range(99999999) | list }}"):
            kind, text = self.ours(template, {"messages": []})
            self.assertEqual(kind, "error", template[:60])
            self.assertRegex(text, "limit|more than|beyond|far|larger|deep|steps")


if __name__ == "__main__":
    unittest.main()
