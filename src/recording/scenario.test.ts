import { expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { executionId } from '../core/ids.ts'
import type { Item } from '../core/items.ts'
import { harnessProfile } from '../trajectory/profiles.ts'
import { parseScenario, scenarioOf } from './scenario.ts'
import type { Scenario } from './scenario.ts'
import { scenarioScript } from './scenario-script.ts'
import type { ScenarioScript } from './scenario-script.ts'

const X = executionId('x')
const user = (text: string): Item => ({ kind: 'user', text })
const said = (text: string): Item => ({ kind: 'assistant', thinking: '', text, toolCalls: [] })

function context(...items: readonly Item[]): Int32Array {
  return Int32Array.from([...byteCodec.encodeConversation(items), ...byteCodec.encodeGenerationPrompt()])
}

function scriptOf(rules: Scenario['rules'], profile = 'pi'): ScenarioScript {
  return scenarioScript(
    { ...scenarioOf({ name: 's', instruction: 'go', rules: [{ turns: [{ text: 'x' }] }] }), rules },
    byteCodec,
    harnessProfile(profile),
  )
}

function says(script: ScenarioScript, ids: Int32Array, requestId = 'r'): string {
  return byteCodec.decode(script(ids, X, requestId))
}

function call(tool: string, args: string): string {
  return `<call>${tool}\n${args}</call>`
}

test('mistakes are named with their line, all at once', () => {
  const text =
    'name: s\ninstruction: go\nrules:\n  - turn: []\n    turns:\n      - {txt: hi}\nfaults:\n  - {arrival: 1, kind: odd}\n'
  expect(() => parseScenario(text, 's.yaml')).toThrow(/s\.yaml:4[^]*turn[^]*s\.yaml:6[^]*s\.yaml:8[^]*kind/)
  expect(() => parseScenario('name: [', 's.yaml')).toThrow(expect.objectContaining({ code: 'E_CONFIG_SCENARIO' }))
  expect(() => scenarioOf({ name: 's', rules: [{ turns: [{ text: 'x' }] }] })).toThrow('either instruction or runs')
  expect(() => scenarioOf({ name: 's', instruction: 'go', rules: [{ turns: [{ raw: 'x', text: 'y' }] }] })).toThrow(
    'raw is the whole turn',
  )
})

test('turns follow each other, and the shell is called as the harness calls it', () => {
  const rules: Scenario['rules'] = [{ when: {}, turns: [{ text: 'one' }, { thinking: 'hm', shell: ['ls', 'pwd'] }] }]
  const script = scriptOf(rules)
  expect(says(script, context(user('go')))).toBe('one<close>')
  const second = context(user('go'), said('one'), user('on'))
  const commands = call('bash', '{"command":"ls"}') + call('bash', '{"command":"pwd"}')
  expect(says(script, second)).toBe(`<think>hm</think>${commands}<close>`)
  const codex = harnessProfile('codex').shellTool
  expect(says(scriptOf(rules, 'codex'), second)).toContain(call(codex.name, `{"${codex.argument}":"ls"}`))
  expect(says(script, context(user('go'), said('one'), user('on'), said('two'), user('on')))).toBe('Done.<close>')
})

test('the first rule that holds speaks, from its marker on, and never because of what the policy said itself', () => {
  const script = scriptOf([
    { when: { lastIncludes: ['summary'] }, turns: Array.from({ length: 9 }, () => ({ text: 'a summary' })) },
    { when: { includes: ['sub-agent'], firstLacks: ['main'] }, turns: [{ text: 'sub 0' }, { text: 'sub 1' }] },
    { when: {}, since: 'resumed', turns: [{ text: 'main 0' }, { text: 'main 1' }] },
  ])
  expect(says(script, context(user('sub-agent')))).toBe('sub 0<close>')
  expect(says(script, context(user('main'), said('sub-agent'), user('on')))).toBe('main 1<close>')
  expect(
    says(script, context(user('main'), said('a'), user('b'), said('c'), user('resumed'), said('d'), user('e'))),
  ).toBe('main 1<close>')
  expect(says(script, context(user('main'), said('a'), user('now a summary')))).toBe('a summary<close>')
})

test('a generation goes on from any of its tokens, and asking the same again gives the next alternative', () => {
  const script = scriptOf([{ when: {}, turns: [[{ raw: '<call>ls {broken' }, { text: 'better' }], { text: 'then' }] }])
  const ids = context(user('go'))
  const whole = script(ids, X, 'r1')
  expect(byteCodec.decode(whole)).toBe('<call>ls {broken<close>')
  for (let cut = 0; cut <= whole.length; cut++) {
    const resumed = Int32Array.from([...ids, ...whole.subarray(0, cut)])
    expect([...script(resumed, X, 'r1')]).toEqual([...whole.subarray(cut)])
  }
  expect(says(script, ids, 'r2')).toBe('better<close>')
  expect(says(script, ids, 'r3')).toBe('better<close>')
  expect([...script(ids, X, 'r1')]).toEqual([...whole])
})

test('a context that no rule holds for is reported', () => {
  const scenario = scenarioOf({
    name: 's',
    instruction: 'go',
    rules: [{ when: { includes: ['never'] }, turns: [{ text: 'x' }] }],
  })
  const misses: string[] = []
  const script = scenarioScript(scenario, byteCodec, harnessProfile('pi'), { onMiss: (text) => misses.push(text) })
  expect(says(script, context(user('something else')))).toBe('Done.<close>')
  expect(misses[0]).toContain('something else')
})
