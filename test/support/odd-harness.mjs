/**
 * @file A harness that does everything a recording has to repeat: parallel calls, echoes in another spelling, hang-ups
 * with and without a retry, the same question with another bound, and a request that is refused.
 */
const { OPENAI_BASE_URL, OPENAI_API_KEY, HOME } = process.env
const SYSTEM = `You are an odd harness in ${HOME}. ${'Do as you are told, and say so.\n'.repeat(20)}`

function ask(messages, { maxTokens = 4000, stream = false, signal } = {}) {
  return fetch(`${OPENAI_BASE_URL}/chat/completions?key=hush&v=1`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${OPENAI_API_KEY}`,
      'content-type': 'application/json',
      'x-secret-token': 'hush',
    },
    body: JSON.stringify({ model: 'm', messages, max_tokens: maxTokens, stream }),
    signal,
  })
}

async function answer(messages, options) {
  const response = await ask(messages, options)
  const body = await response.json()
  if (!response.ok) throw new Error(JSON.stringify(body))
  return body.choices[0].message
}

/** Leaves after the first bytes of the answer. */
async function leave(messages) {
  const leaving = new AbortController()
  const response = await ask(messages, { stream: true, signal: leaving.signal })
  const reader = response.body.getReader()
  await reader.read()
  await reader.read()
  leaving.abort()
  await reader.closed.catch(() => undefined)
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const start = (text) => [
  { role: 'system', content: SYSTEM },
  { role: 'user', content: text },
]

/** Another spelling of the same arguments. */
function respelled(message) {
  const calls = message.tool_calls?.map((call) => {
    const args = JSON.parse(call.function.arguments)
    const keys = Object.keys(args).toReversed()
    return {
      ...call,
      function: {
        ...call.function,
        arguments: JSON.stringify(Object.fromEntries(keys.map((key) => [key, args[key]]))),
      },
    }
  })
  return { role: 'assistant', content: message.content ?? '', ...(calls === undefined ? {} : { tool_calls: calls }) }
}

const main = start('the main task')
const first = await answer(main)
main.push(respelled(first), { role: 'tool', tool_call_id: first.tool_calls[0].id, content: 'x'.repeat(300) })
const [left, right] = await Promise.all([answer(start('go left')), answer(start('go right'))])
if (left.content === right.content) throw new Error('both went the same way')

await leave(main)
const second = await answer(main)
main.push(respelled(second), { role: 'user', content: 'and on' })

await leave([...start('nobody waits for this')])
await sleep(1200)

const short = await ask(main, { maxTokens: 8 })
if (!short.ok) throw new Error('the short question was refused')
const third = await answer(main, { maxTokens: 4000 })
main.push(respelled(third), { role: 'user', content: 'too much: ' + 'y'.repeat(60_000) })
const refused = await ask(main)
if (refused.status !== 400) throw new Error(`the long question was answered with ${refused.status}`)
main[main.length - 1] = { role: 'user', content: 'the last question' }
await answer(main)
