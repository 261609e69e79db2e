/** A chat template whose calls are tags, with the constructs that make such templates differ between languages. */
export const TAG_TEMPLATE = `{% macro rest(fields, known) %}
    {%- if fields is mapping %}
        {%- for key in fields if key not in known %}
            {%- if fields[key] is mapping or (fields[key] is sequence and fields[key] is not string) %}
                {{- '\\n<' ~ key ~ '>' ~ (fields[key] | tojson) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{- '\\n<' ~ key ~ '>' ~ (fields[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- if messages[0].role == 'system' %}
    {%- set first = messages[0].content %}
    {%- set spoken = messages[1:] %}
{%- else %}
    {%- set spoken = messages %}
{%- endif %}
{%- if first is defined or tools %}
    {{- '<|im_start|>system\\n' ~ (first | default('')) }}
    {%- for tool in tools or [] %}
        {%- set spec = tool.function %}
        {{- '\\n<tool>' ~ spec.name ~ ': ' ~ (spec.description | trim) }}
        {%- for name, fields in spec.parameters.properties | items %}
            {{- '\\n<p>' ~ name ~ ' ' ~ (fields.type | string) }}
            {{- rest(fields, ['type']) }}
            {{- '</p>' }}
        {%- endfor %}
        {{- rest(spec.parameters, ['type', 'properties']) }}
        {{- '</tool>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in spoken %}
    {%- if message.role == 'assistant' and message.tool_calls is defined and message.tool_calls | length > 0 %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content is string and message.content | trim | length > 0 %}
            {{- '\\n' + message.content | trim + '\\n' }}
        {%- endif %}
        {%- for entry in message.tool_calls %}
            {%- set entry = entry.function %}
            {{- '\\n<tool_call>\\n<function=' + entry.name + '>\\n' }}
            {%- for name, value in entry.arguments | items %}
                {{- '<parameter=' + name + '>\\n' }}
                {%- set value = value | tojson if value is mapping or (value is sequence and value is not string) else value | string %}
                {{- value }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user\\n' }}
        {%- endif %}
        {{- '<tool_response>\\n' + message.content + '\\n</tool_response>\\n' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
`
