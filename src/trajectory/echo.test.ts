import { describe, expect, test } from 'vitest'
import { toolCall, turn } from '../../test/support/trees.ts'
import type { AssistantItem } from '../core/items.ts'
import { isEcho } from './echo.ts'

const ID = 'call_4'
/** What the policy wrote in the recordings that the rows come from. */
const WRITTEN =
  '{"description" :  "run it",\n "timeout": 5000.0,  "command": "echo caf\\u00e9 \\/tmp", "10": 1, "9": 2 }'
const TRUNCATED = '{"command": "echo broken'

const bash = (args: string, id = ID, name = 'bash'): AssistantItem => turn('Look.', [toolCall(id, name, args)])
const number = (text: string, id = ID): AssistantItem => bash(`{"n":${text}}`, id)
const text = (value: string): string => JSON.stringify(value)
const three = turn('', [toolCall('a', 'ls', '{}'), toolCall('b', 'ls', '{"p":1}'), toolCall('c', 'ls', '{"p":2}')])
const some = (...at: number[]): AssistantItem => ({
  ...three,
  toolCalls: three.toolCalls.filter((_, i) => at.includes(i)),
})
const thought = turn('Done.', [], 'I think so.\n')
const empty = turn('', [], 'Nothing to say.')

type Row = readonly [harness: string, what: string, served: AssistantItem, echo: AssistantItem, why: string]

const SAME: readonly Row[] = [
  [
    'claude-code',
    'keys in the order of the schema',
    bash(WRITTEN),
    bash('{"command":"echo café /tmp","description":"run it","timeout":5000,"9":2,"10":1}'),
    'order is no content',
  ],
  [
    'claude-code',
    'a schema strips and fills in',
    bash(WRITTEN),
    bash('{"command":"echo café /tmp","timeout":5000,"run_in_background":false}'),
    'what both name agrees',
  ],
  [
    'claude-code',
    'a schema strips inside a list',
    bash('{"todos":[{"content":"a","note":"x"}]}'),
    bash('{"todos":[{"content":"a","status":"pending"}]}'),
    'at any depth',
  ],
  ['claude-code', 'a number where text was written', number('"5000"'), number('5000'), 'coerced to the schema'],
  ['claude-code', 'text where a number was written', number('5000.0'), number('"5000"'), 'coerced to the schema'],
  ['claude-code', 'another spelling of the number', number('"5000.0"'), number('5000'), 'coerced to the schema'],
  ['claude-code', 'true where text was written', number('"true"'), number('true'), 'coerced to the schema'],
  [
    'claude-code',
    'bad JSON wrapped',
    bash(TRUNCATED),
    bash(`{"__unparsedToolInput":{"raw":${text(TRUNCATED)},"len":24}}`),
    'the harness says so',
  ],
  [
    'claude-code',
    'bad JSON wrapped and cut',
    bash(`{"a":"${'x'.repeat(4000)}`),
    bash(`{"__unparsedToolInput":{"raw":"{\\"a\\":\\"xxx","len":4006}}`),
    'the wrap keeps the first 2048',
  ],
  [
    'claude-code',
    'good JSON wrapped',
    bash('{"a":1}'),
    bash('{"__unparsedToolInput":{"raw":"{\\"a\\":1}","len":7,"why":"may_be_judged_repaired"}}'),
    'a tool that was not there yet',
  ],
  ['claude-code', 'empty turn as (no content)', empty, turn('(no content)'), 'stands for a turn that said nothing'],
  [
    'claude-code',
    'empty turn as (no content), thinking kept',
    empty,
    turn('(no content)', [], 'Nothing to say.'),
    'both together',
  ],
  ['claude-code', 'literal (no content)', turn('(no content)'), turn('(no content)'), 'the policy may say so itself'],
  ['claude-code', 'thinking kept', thought, thought, 'verbatim'],
  ['claude-code', 'thinking dropped', thought, turn('Done.'), 'recorded tokens stand'],
  [
    'claude-code',
    'thinking of a signature only',
    turn('', three.toolCalls, 'Hm.'),
    three,
    'a block with an empty text',
  ],
  ['claude-code', 'blanks before the words dropped', turn('\n\nDone.'), turn('Done.'), 'outer blanks are no content'],
  ['codex', 'byte for byte', bash(WRITTEN), bash(WRITTEN), 'verbatim'],
  ['codex', 'what is no JSON, byte for byte', bash(TRUNCATED), bash(TRUNCATED), 'verbatim'],
  ['codex', 'what is no object, byte for byte', bash('[1, 2]'), bash('[1, 2]'), 'verbatim'],
  ['codex', 'a big integer, byte for byte', number('12345678901234567891'), number('12345678901234567891'), 'verbatim'],
  [
    'opencode',
    'parsed and written again',
    bash(WRITTEN),
    bash('{"9":2,"10":1,"description":"run it","timeout":5000,"command":"echo café /tmp"}'),
    'blanks, escapes, integer keys first',
  ],
  [
    'opencode',
    'unknown tool renamed invalid',
    bash('{"to":"moon"}', ID, 'fly'),
    bash('{"tool":"fly","error":"unknown"}', ID, 'invalid'),
    'the id is known',
  ],
  [
    'opencode',
    'bad JSON renamed invalid',
    bash(TRUNCATED),
    bash('{"tool":"bash","error":"JSON"}', ID, 'invalid'),
    'the id is known',
  ],
  [
    'opencode',
    'a big integer rounded',
    number('12345678901234567890'),
    number('12345678901234567000'),
    'what JavaScript makes of it',
  ],
  ['opencode', 'minus zero', number('-0.0'), number('0'), 'what JavaScript makes of it'],
  ['opencode', 'more than a double can hold', number('1e999'), number('null'), 'what JavaScript makes of it'],
  ['opencode', 'less than a double can hold', number('1e-999'), number('0'), 'what JavaScript makes of it'],
  ['opencode', 'text with trailing blanks', turn('Done. \n'), turn('Done. \n'), 'kept by all'],
  ['opencode', 'no arguments as an empty object', bash(''), bash('{}'), 'both have none'],
  [
    'qwen-code',
    'an id it has seen',
    bash('{"a":"1","b":2}'),
    bash('{"a":1}', `${ID}__qwen_dup_2`),
    'the id is ours but for the suffix',
  ],
  ['qwen-code', 'reasoning content', thought, turn('Done.', [], 'I think so.\n'), 'verbatim'],
  ['pi', 'truncated JSON repaired', bash(TRUNCATED), bash('{"command":"echo broken"}'), 'what it executed'],
  [
    'pi',
    'JSON repaired by more than a completion',
    bash('{"command": echo broken'),
    bash('{"command":"echo broken"}'),
    'the id is known',
  ],
  [
    'pi',
    'truncated JSON repaired under another id',
    bash(TRUNCATED),
    bash('{"command":"echo broken"}', 'x'),
    'a plain completion proves itself',
  ],
  [
    'pi',
    'truncated in a list under another id',
    bash('{"a": [1, {"b": "c\\"'),
    bash('{"a":[1,{"b":"c\\""}]}', 'x'),
    'a plain completion proves itself',
  ],
  ['pi', 'a lone surrogate replaced', turn('a\ud800b'), turn('a\ufffdb'), 'UTF-8 cannot carry it'],
  [
    'gemini-cli',
    'another id, arguments as an object',
    bash(WRITTEN),
    bash('{"command":"echo café /tmp","timeout":5000,"description":"run it","10":1,"9":2}', 'run_shell_command_1_0'),
    'name and arguments agree',
  ],
  ['gemini-cli', 'another id, another type', number('"5000"'), number('5000', 'x'), 'every field is there'],
  ['gemini-cli', 'no thoughts', thought, turn('Done.'), 'dropped by it'],
  [
    'gemini-cli',
    'parallel calls under other ids',
    three,
    turn(
      '',
      three.toolCalls.map((call, i) => ({ ...call, id: `ls_${i}` })),
    ),
    'in the same order',
  ],
  [
    'any',
    'a big integer written otherwise',
    number('12345678901234567890'),
    number('1.234567890123456789e19'),
    'the same number',
  ],
]

const BRANCH: readonly Row[] = [
  ['claude-code', 'a round with a repeated id', bash('{"a":1}'), turn('Look.[Tool use interrupted]'), 'rewritten'],
  [
    'claude-code',
    'a turn with a repeated id',
    turn('', bash('{}').toolCalls),
    turn('(no content)'),
    'the call is gone',
  ],
  ['claude-code', 'words as (no content)', turn('Done.'), turn('(no content)'), 'the words are gone'],
  ['claude-code', '(no content) as nothing else', empty, turn('(no contents)'), 'other words'],
  ['claude-code', 'thinking rewritten', thought, turn('Done.', [], 'I gave up.'), 'other thoughts'],
  ['claude-code', 'thinking made up', turn('Done.'), turn('Done.', [], 'I gave up.'), 'never sampled'],
  ['claude-code', 'arguments blanked', bash(WRITTEN), bash('{}'), 'nothing agrees'],
  ['claude-code', 'a value rewritten', bash(WRITTEN), bash('{"command":"rm -rf /","timeout":5000}'), 'other arguments'],
  [
    'claude-code',
    'a value rewritten in a list',
    bash('{"todos":[{"content":"a","note":"x"}]}'),
    bash('{"todos":[{"content":"b","note":"x"}]}'),
    'other arguments',
  ],
  ['claude-code', 'an entry of a list dropped', bash('{"todos":[1,2]}'), bash('{"todos":[1]}'), 'other arguments'],
  ['claude-code', 'null where a value was', number('5'), number('null'), 'other arguments'],
  [
    'codex',
    'a big integer off by one',
    number('12345678901234567890'),
    number('12345678901234567891'),
    'the text is there',
  ],
  [
    'codex',
    'a long fraction off in the end',
    number('0.12345678901234567890'),
    number('0.12345678901234567891'),
    'the text is there',
  ],
  ['codex', 'zero as minus zero', number('0'), number('-0.0'), 'nothing makes it so'],
  ['codex', 'what is no JSON, changed', bash(TRUNCATED), bash('{"command": "echo broke'), 'rewritten'],
  ['opencode', 'text of a cut stream', turn('The answer is 42.'), turn('The answer'), 'never sampled so'],
  [
    'opencode',
    'renamed invalid under another id',
    bash('{}', ID, 'fly'),
    bash('{"tool":"fly"}', 'x', 'invalid'),
    'nothing ties it to the turn',
  ],
  ['opencode', 'renamed otherwise', bash('{}'), bash('{}', ID, 'read'), 'another tool'],
  ['qwen-code', 'two of three calls', three, some(0, 2), 'a call is gone'],
  ['qwen-code', 'calls without the last', three, some(0, 1), 'a call is gone'],
  ['qwen-code', 'a call more', some(0, 1), three, 'never sampled'],
  ['qwen-code', 'calls in another order', three, turn('', three.toolCalls.toReversed()), 'never sampled so'],
  [
    'pi',
    'a repair that adds, under another id',
    bash(TRUNCATED),
    bash('{"command":"echo broken","x":1}', 'x'),
    'not a plain completion',
  ],
  ['pi', 'good JSON made bad', bash('{"command":"echo"}'), bash('{"command":"echo'), 'nothing makes it so'],
  [
    'gemini-cli',
    'another id and a field less',
    bash('{"a":1,"b":2}'),
    bash('{"a":1}', 'x'),
    'nothing ties it to the turn',
  ],
  [
    'gemini-cli',
    'another id and a field more',
    bash('{"a":1}'),
    bash('{"a":1,"b":2}', 'x'),
    'nothing ties it to the turn',
  ],
  ['any', 'other words', turn('Let me look.'), turn('Let me look again.'), 'rewritten'],
  ['any', 'blanks inside the words', turn('a b'), turn('a  b'), 'rewritten'],
  ['any', 'other case', turn('Done.'), turn('done.'), 'rewritten'],
]

describe('the same node', () => {
  test.each(SAME)('%s: %s', (_harness, _what, served, echo) => {
    expect(isEcho(served, echo)).toBe(true)
  })
})

describe('a branch', () => {
  test.each(BRANCH)('%s: %s', (_harness, _what, served, echo) => {
    expect(isEcho(served, echo)).toBe(false)
  })
})

test('arguments nested beyond any schema are compared as text', () => {
  const deep = `${'{"a":'.repeat(5000)}1${'}'.repeat(5000)}`
  expect(isEcho(bash(deep), bash(deep))).toBe(true)
  expect(isEcho(bash(deep), bash(deep.replace('1', '2')))).toBe(false)
  expect(isEcho(bash(deep), bash(` ${deep}`, 'x'))).toBe(true)
})
