import OpenAI from 'openai'
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions'
import { expect, test } from 'vitest'
import { says, startRig, turn } from '../../test/support/gateway-rig.ts'
import type { Rig, SeenLeg } from '../../test/support/gateway-rig.ts'
import type { ExecutionEndpoint } from '../ports/forwarding.ts'

const TOOLS: ChatCompletionTool[] = [
  { type: 'function', function: { name: 'bash', description: 'runs', parameters: { type: 'object', properties: {} } } },
]

function client({ baseUrl, apiKey }: ExecutionEndpoint): OpenAI {
  return new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey, maxRetries: 0 })
}

/** What the engine saw and said for each call, as one id list. */
function pathsSeen(legs: readonly SeenLeg[]): number[][] {
  return legs.map((leg) => [...leg.request.promptIds, ...leg.tokenIds])
}

function pathsRecorded(rig: Rig, execution: Parameters<Rig['route']>[0]): number[][] {
  const tree = rig.sink.tree(execution)
  return tree.calls().map((call) => [...tree.pathTokenIds(call.node)])
}

test('a streamed answer arrives through the official client, with true usage', async () => {
  await using rig = await startRig()
  rig.addEngine('e', says('hello wörld'))
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const stream = await client(execution).chat.completions.create({
    model: 'm',
    messages: [{ role: 'user', content: 'hi' }],
    stream: true,
    stream_options: { include_usage: true },
  })
  let text = ''
  let finish: string | null | undefined
  let usage: OpenAI.CompletionUsage | null | undefined
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    finish = chunk.choices[0]?.finish_reason ?? finish
    usage = chunk.usage ?? usage
  }
  expect(text).toBe('hello wörld')
  expect(finish).toBe('stop')
  const [leg] = rig.legs
  expect(usage?.prompt_tokens).toBe(leg?.request.promptIds.length)
  expect(usage?.completion_tokens).toBe(leg?.tokenIds.length)
  expect(rig.sink.records).toHaveLength(1)
  expect(rig.failures).toEqual([])
})

test('in a loop of tool calls the recorded path is exactly what the engine saw, and only the tail is new', async () => {
  await using rig = await startRig()
  rig.addEngine(
    'e',
    says(
      turn('both', ['bash', '{ "command" :  "ls"}'], ['bash', '{"command":"pwd"}']),
      turn('', ['bash', '{}']),
      'done',
    ),
  )
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const api = client(execution)
  const messages: ChatCompletionMessageParam[] = [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: [{ type: 'text', text: 'go' }] },
  ]
  for (let i = 0; i < 5; i++) {
    const { choices } = await api.chat.completions.create({ model: 'm', messages, tools: TOOLS })
    const message = choices[0]?.message
    if (message === undefined) throw new Error('no choice')
    // As harnesses do: arguments are parsed and written anew.
    const calls = (message.tool_calls ?? []).map((call) => {
      if (call.type !== 'function') throw new Error(call.type)
      const rewritten = JSON.stringify(JSON.parse(call.function.arguments))
      return { ...call, function: { ...call.function, arguments: rewritten } }
    })
    if (calls.length === 0) {
      expect(message.content).toBe('done')
      expect(choices[0]?.finish_reason).toBe('stop')
      break
    }
    expect(choices[0]?.finish_reason).toBe('tool_calls')
    messages.push({ role: 'assistant', content: message.content, tool_calls: calls })
    for (const call of calls) messages.push({ role: 'tool', tool_call_id: call.id, content: `result of ${call.id}` })
  }
  expect(rig.legs).toHaveLength(3)
  expect(pathsRecorded(rig, execution.id)).toEqual(pathsSeen(rig.legs))
  const tree = rig.sink.tree(execution.id)
  expect(tree.leaves()).toHaveLength(1)
  expect(tree.tokenCount).toBe(pathsSeen(rig.legs).at(-1)?.length)
  expect(rig.gateway.stats()).toMatchObject({ modelCalls: 3, tokensMismatched: 0, harnessErrors: 0, held: 0 })
})
