import fc from 'fast-check'
import { expect, test } from 'vitest'
import { TAG_TEMPLATE } from '../../test/support/tag-template.ts'
import type { AssistantItem, Item, Json, ToolSpec } from '../core/items.ts'
import { trainBpe } from './bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS, tokenizerFiles } from './chat-template.ts'
import type { ChatCodec, OutputEvent } from './codec.ts'
import { createChatCodec } from './hf-codec.ts'
import { readXmlCall } from './xml-call.ts'

const TYPES: Readonly<Record<string, Json>> = {
  text: { type: 'string' },
  count: { type: 'integer' },
  ratio: { type: 'number' },
  all: { type: 'boolean' },
  list: { type: 'array' },
  map: { type: 'object' },
  maybe: { type: ['string', 'null'] },
  either: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
  choice: { enum: ['a', 'b'] },
}
const edit: ToolSpec = { name: 'edit', description: 'Edit.', parameters: { type: 'object', properties: TYPES } }

const parameter = (key: string, value: string): string => `<parameter=${key}>\n${value}\n</parameter>\n`
const asCall = (name: string, ...parameters: readonly string[]): string =>
  `\n<function=${name}>\n${parameters.join('')}</function>\n`
const read = (key: string, value: string): string | undefined =>
  readXmlCall(asCall('edit', parameter(key, value)), [edit])?.argumentsText

test.each([
  ['text', 'ls -la', '"ls -la"'],
  ['text', '5', '"5"'],
  ['text', 'null', '"null"'],
  ['text', ' two\n\nlines ', '" two\\n\\nlines "'],
  ['text', '\n', '"\\n"'],
  ['text', '', '""'],
  ['text', 'a &lt; b', '"a &lt; b"'],
  ['text', 'say </parameter> and go', '"say </parameter> and go"'],
  ['text', 'x </function> y', '"x </function> y"'],
  ['count', '5', '5'],
  ['count', '12345678901234567890', '12345678901234567890'],
  ['count', 'many', '"many"'],
  ['ratio', '5000.0', '5000.0'],
  ['all', 'true', 'true'],
  ['all', 'True', 'true'],
  ['all', 'None', 'null'],
  ['list', '[1, "a"]', '[1, "a"]'],
  ['map', '{"k": 1.0}', '{"k": 1.0}'],
  ['map', "{'k': 1}", '"{\'k\': 1}"'],
  ['maybe', 'null', 'null'],
  ['maybe', 'nullish', '"nullish"'],
  ['either', '7', '7'],
  ['either', 'None', 'null'],
  ['choice', 'a', '"a"'],
  ['undeclared', '7', '7'],
  ['undeclared', 'False', 'false'],
  ['undeclared', 'word', '"word"'],
])('parameter %s of text %j is %s', (key, value, json) => {
  expect(read(key, value)).toBe(`{"${key}": ${json}}`)
})

test('reads a call without parameters, of an undeclared tool, and one whose parameter repeats', () => {
  expect(readXmlCall('<function=stop></function>', [])).toEqual({ name: 'stop', argumentsText: '{}' })
  expect(readXmlCall(asCall('other', parameter('n', '1')), [edit])).toEqual({
    name: 'other',
    argumentsText: '{"n": 1}',
  })
  const repeated = asCall('edit', parameter('count', '1'), parameter('count', '2'))
  expect(readXmlCall(repeated, [edit])?.argumentsText).toBe('{"count": 2}')
})

test.each([
  '',
  'words',
  '<function=edit>',
  '<function=edit>\n<parameter=text>\nx\n</function>',
  '<function=edit>\nwords\n</function>',
  '<function=edit>\n<parameter=text>\nx\n</parameter>\nwords\n</function>',
  'words <function=edit></function>',
  '<function=a></function><function=b></function>',
  '{"name": "edit", "arguments": {}}',
])('what is no call is none: %j', (text) => {
  expect(readXmlCall(text, [edit])).toBeUndefined()
})

const SAMPLE = '<function=edit>\n<parameter=text>\nsome text\n</parameter>\n</function>\n'
const tokenizer = trainBpe([SAMPLE, SAMPLE], { vocabSize: 340, specialTokens: CHAT_SPECIAL_TOKENS })
const files = tokenizerFiles(tokenizer, 1024)
const codec: ChatCodec = createChatCodec({
  tokenizerJson: files['tokenizer.json'],
  tokenizerConfigJson: files['tokenizer_config.json'],
  chatTemplate: TAG_TEMPLATE,
})

const turn = (argumentsText: string): AssistantItem => ({
  kind: 'assistant',
  thinking: '',
  text: 'Now.',
  toolCalls: [{ id: 'c', name: 'edit', argumentsText }],
})

function parsed(ids: readonly number[], cuts: readonly number[] = []): OutputEvent[] {
  const parser = codec.outputParser([edit])
  const edges = [0, ...[...cuts].sort((a, b) => a - b), ids.length]
  return [...edges.slice(1).flatMap((end, i) => parser.push(ids.slice(edges[i], end))), ...parser.finish()]
}

// What Python with jinja2 3.1.6 prints for TAG_TEMPLATE and this conversation.
const PYTHON = `<|im_start|>system
Be brief.
<tool>edit: Edit a file
<p>path string
<minLength>1</minLength></p>
<p>all boolean
<default>False</default></p>
<p>count ['integer', 'null']
<default>None</default>
<maximum>2.5</maximum></p>
<required>["path"]</required>
<additionalProperties>False</additionalProperties></tool><|im_end|>
<|im_start|>user
Go.<|im_end|>
<|im_start|>assistant
Now.

<tool_call>
<function=edit>
<parameter=path>
a "b"
</parameter>
<parameter=all>
True
</parameter>
<parameter=none>
None
</parameter>
<parameter=count>
3
</parameter>
<parameter=ratio>
0.5
</parameter>
<parameter=list>
[1, true, null, "x"]
</parameter>
<parameter=map>
{"k": false}
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
ok
</tool_response>
<tool_response>
done
</tool_response>
<|im_end|>
`

test('a conversation is encoded as Python renders it', () => {
  const properties: Json = {
    path: { type: 'string', minLength: 1 },
    all: { type: 'boolean', default: false },
    count: { type: ['integer', 'null'], default: null, maximum: 2.5 },
  }
  const parameters: Json = { type: 'object', properties, required: ['path'], additionalProperties: false }
  const argumentsText =
    '{"path": "a \\"b\\"", "all": true, "none": null, "count": 3, "ratio": 0.5, "list": [1, true, null, "x"], "map": {"k": false}}'
  const result = { kind: 'tool-result', callId: 'c', name: '', isError: false } as const
  const conversation: readonly Item[] = [
    { kind: 'tools', tools: [{ name: 'edit', description: ' Edit a file ', parameters }] },
    { kind: 'system', text: 'Be brief.' },
    { kind: 'user', text: 'Go.' },
    turn(argumentsText),
    { ...result, text: 'ok' },
    { ...result, text: 'done' },
  ]
  expect(codec.decode(codec.encodeConversation(conversation))).toBe(PYTHON)
})

test('whatever a turn says in tags is read back, in any chunking', () => {
  const value = fc.string({ unit: fc.constantFrom('a', 'é', '"', '\\', '\n', '<', '>', '{', ' ') })
  fc.assert(
    fc.property(value, fc.array(fc.nat(60), { maxLength: 4 }), (text, cuts) => {
      const ids = [...codec.encodeTurn(turn(JSON.stringify({ text })))]
      const events = parsed(
        ids,
        cuts.map((cut) => Math.min(cut, ids.length)),
      )
      const call = events.at(-1)
      expect(call).toMatchObject({ kind: 'tool-call', name: 'edit' })
      const said = call?.kind === 'tool-call' ? (JSON.parse(call.argumentsText) as { readonly text: string }).text : ''
      expect(said).toBe(text)
    }),
    { numRuns: 200 },
  )
})
