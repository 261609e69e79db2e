#!/usr/bin/env node
/**
 * The smallest harness that is one: a loop of model calls and shell commands, for `harness.name: command`.
 *
 * Environment: OPENAI_BASE_URL, OPENAI_API_KEY, GYRE_MODEL, GYRE_INSTRUCTION; and, to play a slow world,
 * MINI_TOOL_MEDIAN_MS and MINI_TOOL_SIGMA: every command also waits a log-normal time. The draw depends on
 * the task and on the number of the call, so the same workload can be run again.
 */
import { spawn } from 'node:child_process'
import { request } from 'node:http'

const { OPENAI_BASE_URL, OPENAI_API_KEY, GYRE_MODEL, GYRE_INSTRUCTION = '' } = process.env
const median = Number(process.env.MINI_TOOL_MEDIAN_MS ?? 0)
const sigma = Number(process.env.MINI_TOOL_SIGMA ?? 0)
const maxTurns = Number(process.env.MINI_MAX_TURNS ?? 16)

const tools = [
  {
    type: 'function',
    function: {
      name: 'bash',
      description: 'Run a shell command in the workspace.',
      parameters: { type: 'object', required: ['command'], properties: { command: { type: 'string' } } },
    },
  },
]
const messages = [
  { role: 'system', content: 'You work in a terminal.' },
  { role: 'user', content: GYRE_INSTRUCTION },
]

for (let turn = 0; turn < maxTurns; turn++) {
  const message = await ask()
  messages.push(message)
  const calls = message.tool_calls ?? []
  if (calls.length === 0) break
  for (const call of calls) {
    const waitMs = Math.round(delayMs(turn))
    await new Promise((resolve) => setTimeout(resolve, waitMs))
    if (waitMs > 0) process.stderr.write(`waited ${waitMs}\n`)
    messages.push({ role: 'tool', tool_call_id: call.id, content: await run(call.function.arguments) })
  }
}

async function ask() {
  const { status, text } = await post(`${OPENAI_BASE_URL}/chat/completions`, { model: GYRE_MODEL, messages, tools })
  if (status !== 200) throw new Error(`the model answered ${status}: ${text}`)
  return JSON.parse(text).choices[0].message
}

/** Plain node:http: it starts in half the time of fetch, which counts when hundreds of executions start at once. */
function post(url, body) {
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${OPENAI_API_KEY}` }
    const asking = request(url, { method: 'POST', headers }, (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (chunk) => (text += chunk))
      response.on('end', () => resolve({ status: response.statusCode, text }))
      response.on('error', reject)
    })
    asking.on('error', reject)
    asking.end(JSON.stringify(body))
  })
}

function run(argumentsText) {
  return new Promise((resolve) => {
    let command
    try {
      command = JSON.parse(argumentsText).command
    } catch {
      resolve('the arguments are not JSON')
      return
    }
    const child = spawn('sh', ['-c', String(command)], { stdio: ['ignore', 'pipe', 'pipe'], timeout: 10_000 })
    let output = ''
    child.stdout.on('data', (chunk) => (output += chunk))
    child.stderr.on('data', (chunk) => (output += chunk))
    child.on('error', (error) => resolve(String(error)))
    child.on('close', () => resolve(output === '' ? '(no output)' : output))
  })
}

/** exp(ln median + sigma z), z normal by Box-Muller from a hash of execution and turn. */
function delayMs(turn) {
  // Held-out executions are measured for what they do, not for how long it takes.
  if (median === 0 || /\/x\/(before|after)-/.test(OPENAI_BASE_URL)) return 0
  const member = /\/x\/[^/]*?-(\d+)/.exec(OPENAI_BASE_URL)?.[1] ?? '0'
  const [u, v] = [1, 2].map((salt) => uniform(`${GYRE_INSTRUCTION}/${member}/${salt}`))
  const slowness = Math.exp(sigma * Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v))
  return median * slowness * (0.75 + 0.5 * uniform(`${GYRE_INSTRUCTION}/${member}/${turn}`))
}

function uniform(text) {
  let h = 0x811c9dc5
  for (const char of text) h = Math.imul(h ^ char.codePointAt(0), 0x01000193)
  h = Math.imul(h ^ (h >>> 15), 0x2c1b3c6d)
  h = Math.imul(h ^ (h >>> 12), 0x297a2d39)
  return (((h ^ (h >>> 15)) >>> 0) + 1) / 4294967298
}
