/** @file Valid requests of every dialect, as harnesses send them: what a fuzz test mutates. */
import type { Json } from '../../src/core/items.ts'

export type DialectOfSample = 'openai-chat' | 'openai-responses' | 'anthropic' | 'gemini'

export interface WireSample {
  readonly dialect: DialectOfSample
  readonly kind: 'answer' | 'stream' | 'count'
  /** What follows the execution's base URL. */
  readonly path: string
  readonly body: Json
}

const SCHEMA = { type: 'object', properties: { command: { type: 'string' }, n: { type: 'number' } }, required: ['n'] }

/** @param marker Text that every body holds in several places. */
export function wireSamples(marker: string): readonly WireSample[] {
  return [...anthropicSamples(marker), ...chatSamples(marker), ...responsesSamples(marker), ...geminiSamples(marker)]
}

function anthropicSamples(marker: string): readonly WireSample[] {
  const cache_control = { type: 'ephemeral' }
  const late = { name: 'Late', description: marker, input_schema: SCHEMA, defer_loading: true }
  const small = { model: 'm', max_tokens: 200, messages: [{ role: 'user', content: `hi ${marker}` }] }
  const large = {
    model: 'm',
    max_tokens: 32_000,
    system: [
      { type: 'text', text: 'x-anthropic-billing-header: cc_version=1;' },
      { type: 'text', text: `S ${marker}`, cache_control },
    ],
    tools: [{ name: 'Bash', description: 'runs', input_schema: SCHEMA, cache_control }, late],
    tool_choice: { type: 'auto' },
    thinking: { type: 'adaptive' },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    output_config: { effort: 'high' },
    metadata: { user_id: '{}' },
    messages: [
      { role: 'user', content: [{ type: 'text', text: marker, cache_control }] },
      { role: 'system', content: 'env' },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'hm', signature: 's' },
          { type: 'redacted_thinking', data: 'x' },
          { type: 'text', text: 'a' },
          { type: 'tool_use', id: 'c1', name: 'Bash', input: { command: 'ls', n: 1.5 } },
          { type: 'tool_use', id: 'c2', name: 'Bash', input: {} },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 'c1', content: marker },
          {
            type: 'tool_result',
            tool_use_id: 'c2',
            content: [
              { type: 'tool_reference', tool_name: 'Late' },
              { type: 'text', text: 'r' },
            ],
            is_error: true,
          },
          { type: 'text', text: 'and on' },
        ],
      },
      { role: 'system', content: [{ type: 'tool_addition', tool: { type: 'tool_reference', name: 'Late' } }] },
    ],
  }
  const path = '/v1/messages?beta=true'
  return [
    { dialect: 'anthropic', kind: 'answer', path, body: small },
    { dialect: 'anthropic', kind: 'answer', path, body: large },
    { dialect: 'anthropic', kind: 'stream', path, body: { ...large, stream: true } },
    { dialect: 'anthropic', kind: 'count', path: '/v1/messages/count_tokens', body: large },
  ]
}

function chatSamples(marker: string): readonly WireSample[] {
  const small = { model: 'm', messages: [{ role: 'user', content: `hi ${marker}` }] }
  const toolCall = { id: 'c1', type: 'function', function: { name: 'bash', arguments: '{"command": "ls"}' } }
  const large = {
    model: 'm',
    max_completion_tokens: 16_000,
    temperature: 0.5,
    tools: [{ type: 'function', function: { name: 'bash', description: marker, parameters: SCHEMA } }],
    tool_choice: 'auto',
    messages: [
      { role: 'system', content: `S ${marker}` },
      { role: 'user', content: [{ type: 'text', text: marker }] },
      { role: 'assistant', content: null, reasoning_content: 'hm', tool_calls: [toolCall, { ...toolCall, id: 'c2' }] },
      { role: 'tool', tool_call_id: 'c1', content: marker },
      { role: 'tool', tool_call_id: 'c2', content: [{ type: 'text', text: 'r' }] },
      { role: 'user', content: 'and on' },
    ],
  }
  const path = '/v1/chat/completions'
  const streamed = { ...large, stream: true, stream_options: { include_usage: true } }
  return [
    { dialect: 'openai-chat', kind: 'answer', path, body: small },
    { dialect: 'openai-chat', kind: 'answer', path, body: large },
    { dialect: 'openai-chat', kind: 'stream', path, body: streamed },
  ]
}

function inputText(text: string): Json {
  return [{ type: 'input_text', text }]
}

function responsesSamples(marker: string): readonly WireSample[] {
  const large = {
    model: 'm',
    instructions: `S ${marker}`,
    store: false,
    include: ['reasoning.encrypted_content'],
    parallel_tool_calls: true,
    prompt_cache_key: 'k',
    reasoning: { effort: 'medium', summary: 'auto' },
    tool_choice: 'auto',
    tools: [{ type: 'function', name: 'exec_command', description: marker, strict: false, parameters: SCHEMA }],
    input: [
      { type: 'message', role: 'developer', content: inputText('rules') },
      { type: 'message', role: 'user', content: inputText(marker) },
      { type: 'reasoning', summary: [], encrypted_content: 'x' },
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'a' }] },
      { type: 'function_call', name: 'exec_command', arguments: '{"command":"ls"}', call_id: 'c1' },
      { type: 'function_call', name: 'exec_command', arguments: '{}', call_id: 'c2' },
      { type: 'function_call_output', call_id: 'c1', output: marker },
      { type: 'function_call_output', call_id: 'c2', output: inputText('r') },
    ],
  }
  const path = '/v1/responses'
  return [
    { dialect: 'openai-responses', kind: 'answer', path, body: { model: 'm', input: `hi ${marker}`, store: false } },
    { dialect: 'openai-responses', kind: 'answer', path, body: large },
    { dialect: 'openai-responses', kind: 'stream', path, body: { ...large, stream: true } },
  ]
}

function geminiSamples(marker: string): readonly WireSample[] {
  const parameters = { type: 'OBJECT', properties: { n: { type: 'NUMBER' } } }
  const large = {
    systemInstruction: { role: 'user', parts: [{ text: `S ${marker}` }] },
    tools: [
      {
        functionDeclarations: [
          { name: 'ls', description: marker, parametersJsonSchema: SCHEMA },
          { name: 'cat', parameters },
        ],
      },
    ],
    toolConfig: { functionCallingConfig: { mode: 'AUTO' } },
    generationConfig: { temperature: 1, topP: 0.95, topK: 64, maxOutputTokens: 900, thinkingConfig: {} },
    contents: [
      { role: 'user', parts: [{ text: marker }, { text: 'go' }] },
      {
        role: 'model',
        parts: [
          { text: 'hm', thought: true },
          { text: 'a' },
          { functionCall: { id: 'c1', name: 'ls', args: { n: 1 } }, thoughtSignature: 'skip' },
          { functionCall: { name: 'cat', args: {} } },
        ],
      },
      {
        role: 'user',
        parts: [
          { functionResponse: { id: 'c1', name: 'ls', response: { output: marker } } },
          { functionResponse: { name: 'cat', response: { error: 'r', code: 1 } } },
        ],
      },
    ],
  }
  const whole = { generateContentRequest: { model: 'models/m', ...large } }
  const small = { contents: [{ parts: [{ text: `hi ${marker}` }] }] }
  const path = '/v1beta/models/m'
  return [
    { dialect: 'gemini', kind: 'answer', path: `${path}:generateContent`, body: small },
    { dialect: 'gemini', kind: 'answer', path: `${path}:generateContent`, body: large },
    { dialect: 'gemini', kind: 'stream', path: `${path}:streamGenerateContent?alt=sse`, body: large },
    { dialect: 'gemini', kind: 'count', path: `${path}:countTokens`, body: whole },
  ]
}
