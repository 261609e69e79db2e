/**
 * @file The project's own chat template and the tokenizer files of the models it trains.
 *
 * Every message is closed by its own end mark, so the render of a conversation is the
 * concatenation of the renders of its parts. Tools stand before the system text: the system text of
 * a harness ends with the date and the working folder, and what stands after it is never shared.
 */
import type { SpecialToken, TokenizerJson } from './bpe-trainer.ts'

/** What the template marks turns with. Markup that is part of a turn is not `special`, so decoders keep it. */
export const CHAT_SPECIAL_TOKENS: readonly SpecialToken[] = [
  { content: '<|endoftext|>', special: true },
  { content: '<|im_start|>', special: true },
  { content: '<|im_end|>', special: true },
  { content: '<tool_call>', special: false },
  { content: '</tool_call>', special: false },
  { content: '<tool_response>', special: false },
  { content: '</tool_response>', special: false },
  { content: '<think>', special: false },
  { content: '</think>', special: false },
]

/** Jinja, in the subset that transformers and @huggingface/jinja share. Thinking of earlier turns is kept. */
export const CHAT_TEMPLATE = `{%- if tools %}
    {{- '<|im_start|>tools\\n' }}
    {%- for tool in tools %}
        {%- set spec = tool.function if tool.function is defined else tool %}
        {{- spec | tojson(separators=(',', ':')) }}
        {{- '\\n' }}
    {%- endfor %}
    {{- 'Use: <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
                {%- if message.content or not loop.first %}
                    {{- '\\n' }}
                {%- endif %}
                {{- '<tool_call>\\n{"name": ' }}
                {{- call.name | tojson }}
                {{- ', "arguments": ' }}
                {%- if call.arguments is string %}
                    {{- call.arguments }}
                {%- else %}
                    {{- call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>tool' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
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

export interface TokenizerFiles {
  readonly 'tokenizer.json': string
  readonly 'tokenizer_config.json': string
}

/**
 * The two files that make a model folder readable by any Hugging Face tool.
 * @param maxContext What the model accepts. [tokens]
 */
export function tokenizerFiles(tokenizer: TokenizerJson, maxContext: number): TokenizerFiles {
  const addedTokens = tokenizer.added_tokens.map(({ id, ...token }) => [String(id), token] as const)
  const config = {
    tokenizer_class: 'PreTrainedTokenizerFast',
    model_max_length: maxContext,
    bos_token: null,
    eos_token: '<|im_end|>',
    pad_token: '<|endoftext|>',
    unk_token: null,
    clean_up_tokenization_spaces: false,
    added_tokens_decoder: Object.fromEntries(addedTokens),
    chat_template: CHAT_TEMPLATE,
  }
  return {
    'tokenizer.json': `${JSON.stringify(tokenizer)}\n`,
    'tokenizer_config.json': `${JSON.stringify(config, null, 2)}\n`,
  }
}
