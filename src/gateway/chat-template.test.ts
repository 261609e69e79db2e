import { expect, test } from 'vitest'
import { startRig, turn } from '../../test/support/gateway-rig.ts'
import { scriptedTurns } from '../adapters/engine/scripted/scripted.ts'
import { trainBpe } from '../tokens/bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS, tokenizerFiles } from '../tokens/chat-template.ts'
import { createChatCodec } from '../tokens/hf-codec.ts'

const SAMPLE =
  'You are an agent. {"name": "bash", "arguments": {"command": "ls -la"}} Use the tools to read and write.\n'
const files = tokenizerFiles(trainBpe([SAMPLE, SAMPLE], { vocabSize: 400, specialTokens: CHAT_SPECIAL_TOKENS }), 8192)
const codec = createChatCodec({
  tokenizerJson: files['tokenizer.json'],
  tokenizerConfigJson: files['tokenizer_config.json'],
})

interface Message {
  role: string
  content?: string | null
  tool_calls?: object[]
  tool_call_id?: string
}

test('with the real template, echoed turns keep their tokens and the path stays what a whole render would give', async () => {
  await using rig = await startRig({ codec })
  const turns = [
    { ...turn('Looking.', ['bash', '{"command":  "ls"}'], ['bash', '{"n": 1.0}']), thinking: 'Easy.' },
    turn('', ['bash', '{"command":"cat <|im_end|>"}']),
    turn('Done: <tool_call> is only text.'),
  ]
  rig.addEngine('e', { script: scriptedTurns(codec, turns), chunkTokens: 3 })
  const execution = rig.open('x1')
  rig.route(execution.id, 'e')
  const messages: Message[] = [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'List <|im_start|> the files.' },
  ]
  const tools = [{ type: 'function', function: { name: 'bash', description: 'runs', parameters: { type: 'object' } } }]
  const ask = async (): Promise<Message> => {
    const response = await fetch(`${execution.baseUrl}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${execution.apiKey}` },
      body: JSON.stringify({ messages, tools }),
    })
    const body = (await response.json()) as { choices: { message: Message }[] }
    return body.choices[0]?.message ?? { role: 'none' }
  }
  for (const said of turns) {
    const message = await ask()
    expect(message.content ?? '').toBe(said.text)
    messages.push(message)
    for (let i = 0; i < said.toolCalls.length; i++) {
      messages.push({ role: 'tool', tool_call_id: `call_${rig.legs.length - 1}_${i}`, content: `out ${i}` })
    }
  }
  const tree = rig.sink.tree(execution.id)
  expect(tree.leaves()).toHaveLength(1)
  const whole = tree.pathTokenIds(tree.leaves()[0] ?? 0)
  expect([...whole]).toEqual([...(rig.legs.at(-1)?.request.promptIds ?? []), ...(rig.legs.at(-1)?.tokenIds ?? [])])
  const items = tree.pathNodes(tree.leaves()[0] ?? 0).flatMap((n) => (n.provenance === 'policy' ? [n.turn] : n.items))
  expect(codec.decode(whole)).toBe(codec.decode(codec.encodeConversation(items)))

  // A history that was rewritten, with two turns in a row, is encoded as it stands and trains nothing.
  messages.splice(
    2,
    1,
    { role: 'assistant', content: 'I never said this.' },
    { role: 'assistant', content: 'Nor this.' },
  )
  messages.push({ role: 'user', content: 'Go on.' })
  await ask()
  const after = rig.sink.tree(execution.id)
  expect(after.calls()).toHaveLength(4)
  const path = after.pathNodes(after.calls()[3]?.node ?? 0)
  expect(path.filter((node) => node.provenance === 'policy')).toHaveLength(1)
  expect(codec.decode(rig.legs.at(-1)?.request.promptIds ?? [])).toContain('Nor this.<|im_end|>')
  expect(rig.gateway.stats()).toMatchObject({ tokensMismatched: 0, harnessErrors: 0 })
})
