import { expect, test } from 'vitest'
import { toolCall, turn } from '../../test/support/trees.ts'
import type { AssistantItem } from '../core/items.ts'
import { judgeEcho } from './echo-judge.ts'

const bash = (args: string, name = 'bash'): AssistantItem => turn('look', [toolCall('call_0_0', name, args)], 'hm')
const SERVED = bash('{"command" :  "echo caf\\u00e9", "timeout": 5000.0}')

test.each<[string, AssistantItem, ReturnType<typeof judgeEcho>]>([
  ['as it was', SERVED, 'same'],
  [
    'in another order and spelling, thinking dropped',
    turn(' look\n', [toolCall('x', 'bash', '{"timeout":5000,"command":"echo café"}')]),
    'same',
  ],
  ['a number as text', bash('{"command":"echo café","timeout":"5000"}'), 'open'],
  ['a field stripped', bash('{"command":"echo café"}'), 'open'],
  ['renamed under its id', bash('{"error":"no such tool"}', 'invalid'), 'open'],
  ['other arguments', bash('{"command":"echo tea","timeout":5000}'), 'different'],
  ['other words', { ...SERVED, text: 'looked' }, 'different'],
  ['other thoughts', { ...SERVED, thinking: 'ha' }, 'different'],
  ['a call less', { ...SERVED, toolCalls: [] }, 'different'],
])('%s', (_, echo, verdict) => {
  expect(judgeEcho(SERVED, echo)).toBe(verdict)
})

test('broken arguments may be repaired, and a silent turn may be given words', () => {
  const broken = bash('{"command": "echo')
  expect(judgeEcho(broken, broken)).toBe('same')
  expect(judgeEcho(broken, bash('{"command":"echo"}'))).toBe('open')
  expect(judgeEcho(turn('', [], 'hm'), turn('(no content)'))).toBe('open')
})
