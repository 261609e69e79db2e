#!/usr/bin/env node
/**
 * A harness for end-to-end tests: it talks to whatever policy answers, also to one that has learned nothing.
 *
 * Tool calls are carried out. A turn without one is answered with "Go on.", until STEADY_TURNS turns are over. When
 * the policy never called a tool, members with an odd number write the first code of the trail themselves, so that
 * the rewards of a group differ and something is there to be learned.
 *
 * STEADY_TURNS [calls], STEADY_PAUSE_MS between calls and STEADY_TELL, a file that gets one JSON line per start with
 * the endpoint and the process id.
 */
import { spawn } from 'node:child_process'
import { appendFileSync, readFileSync } from 'node:fs'

const { OPENAI_BASE_URL = '', OPENAI_API_KEY, GYRE_MODEL, GYRE_INSTRUCTION = '' } = process.env
const turns = Number(process.env.STEADY_TURNS ?? 3)
const pauseMs = Number(process.env.STEADY_PAUSE_MS ?? 0)
const member = Number(/-(\d+)\.\d+(?:\/|$)/.exec(OPENAI_BASE_URL)?.[1] ?? 0)
const isCalibration = OPENAI_BASE_URL.includes('/x/calibration')
const lastTurn = isCalibration ? 100 : turns

if (process.env.STEADY_TELL !== undefined) {
  const told = { baseUrl: OPENAI_BASE_URL, apiKey: OPENAI_API_KEY, model: GYRE_MODEL, pid: process.pid }
  appendFileSync(process.env.STEADY_TELL, `${JSON.stringify(told)}\n`)
}

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
let hasCalled = false

for (let turn = 0; turn < lastTurn; turn++) {
  const message = await ask()
  messages.push(message)
  const calls = message.tool_calls ?? []
  hasCalled ||= calls.length > 0
  if (isCalibration && calls.length === 0) break
  if (!isCalibration) await new Promise((resolve) => setTimeout(resolve, pauseMs * (1 + member / 4)))
  for (const call of calls) {
    messages.push({ role: 'tool', tool_call_id: call.id, content: await run(call.function.arguments) })
  }
  if (calls.length === 0) messages.push({ role: 'user', content: 'Go on.' })
}
if (!hasCalled && member % 2 === 1) solveFirstStop()

async function ask() {
  const response = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: GYRE_MODEL, messages, tools }),
  })
  const body = await response.json()
  if (!response.ok) throw new Error(`the model answered ${response.status}: ${JSON.stringify(body)}`)
  return body.choices[0].message
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

function solveFirstStop() {
  const [, file] = /Start at (\S+\.txt)/.exec(GYRE_INSTRUCTION) ?? []
  if (file === undefined) return
  const [, code] = /^code (.*)$/m.exec(readFileSync(file, 'utf8')) ?? []
  appendFileSync('answer.txt', `${code}\n`)
}
