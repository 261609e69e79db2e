/**
 * @file A harness that makes one model call, when it makes one at all, and then does what a sandbox has to survive.
 *
 * `node wild-harness.mjs BEHAVIOUR MARK`: everything it starts sleeps for MARK seconds, so that it can be found.
 */
import { spawn } from 'node:child_process'
import { appendFileSync, closeSync, writeFileSync } from 'node:fs'

const [behaviour, mark] = process.argv.slice(2)
const { OPENAI_BASE_URL, OPENAI_API_KEY, GYRE_MODEL } = process.env
const forever = () => setInterval(() => undefined, 1000)
const sh = (script) => spawn('sh', ['-c', script], { stdio: 'inherit' })

if (behaviour === 'silent') {
  writeFileSync('started', '')
  forever()
} else {
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: GYRE_MODEL, messages: [{ role: 'user', content: 'hello' }] }),
  })
  if (!response.ok) throw new Error(`the model answered ${response.status}`)
  await response.text()
  writeFileSync('answer.txt', 'done')
  writeFileSync('started', '')
  await behaviours()[behaviour]()
}

function behaviours() {
  return {
    ends: () => process.exit(0),
    hangs: () => forever(),
    deaf: () => {
      process.on('SIGTERM', () => undefined)
      forever()
    },
    // A daemon as the book has it: a session of its own, its parent gone, its streams closed, elsewhere.
    daemons: async () => {
      const daemon = `trap '' TERM HUP; cd /; exec <&- >&- 2>&-; sleep ${mark}; sleep ${mark}`
      const child = sh(`(setsid nohup sh -c "${daemon}" &) ; (nohup sleep ${mark} >/dev/null 2>&1 &) ; exit 0`)
      await new Promise((resolve) => child.on('close', resolve))
      process.exit(0)
    },
    mute: () => {
      for (const stream of [0, 1, 2]) closeSync(stream)
      forever()
    },
    // Larger and larger files until the limit stops it.
    floods: () => {
      for (;;) appendFileSync('flood', Buffer.alloc(1 << 20))
    },
    forks: () => {
      sh(`while :; do sleep ${mark} & sleep 0.05; done`)
      forever()
    },
  }
}
