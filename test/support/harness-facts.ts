/** @file What comes of the scenarios of each harness: the figures its real program was seen to make of them. */
import { geminiCli } from '../../src/adapters/harness/packaged/recipes/gemini-cli.ts'
import { opencode } from '../../src/adapters/harness/packaged/recipes/opencode.ts'
import { pi } from '../../src/adapters/harness/packaged/recipes/pi.ts'
import { qwenCode } from '../../src/adapters/harness/packaged/recipes/qwen-code.ts'
import type { HarnessSuite } from './harness-suite.ts'

const BOTH = { 'a.txt': 'alpha\n', 'b.txt': 'beta\n' }
const SAID = { 'a.txt': 'café 😀 /tmp\n', 'b.txt': 'quoted', 'd.txt': 'good\n' }
const LOG = { 'log.txt': 'one\ntwo\nthree\n' }
const SIDES = { 'left.txt': 'left\n', 'right.txt': 'right\n' }
const STEPS = { 'first.txt': 'first\n', 'second.txt': 'second\n' }
const DONE = { 'done.txt': 'done\n' }

export const QWEN_CODE: HarnessSuite = {
  recipe: qwenCode,
  scenarios: {
    task: { files: BOTH, calls: { main: 6 }, leaves: 1 },
    'hard-echo': { files: { ...SAID, 'c.txt': 'typed\n' }, calls: { main: 8 }, leaves: 1 },
    retry: { files: LOG, calls: { main: 5 }, leaves: 1, repeated: 2 },
    'sub-agents': { files: SIDES, calls: { main: 3, 'sub-agent': 5 }, leaves: 3 },
    // A second process leaves the date out of the first message.
    resume: { files: STEPS, calls: { main: 4 }, leaves: 2, imported: 2 },
    // The summary extends the conversation. Its last round is kept word for word, and the reminders that stood in the
    // first message come back one call later: two conversations begin after the summary.
    compaction: { files: DONE, calls: { main: 7, 'main-summary': 1 }, leaves: 3, imported: 3, varies: true },
  },
}

/** It lets the policy greet before the task. */
export const OLD_QWEN_CODE: HarnessSuite = {
  recipe: qwenCode,
  version: '0.15.10',
  scenarios: {
    task: { files: BOTH, calls: { main: 6 }, leaves: 1, imported: 1 },
    // It refuses numbers that are written as text.
    'hard-echo': { files: SAID, calls: { main: 8 }, leaves: 1, imported: 1 },
    retry: { files: LOG, calls: { main: 5 }, leaves: 1, imported: 1, repeated: 2 },
  },
}

/** It asks for a title first, on the side. */
export const OPENCODE: HarnessSuite = {
  recipe: opencode,
  scenarios: {
    task: { files: { ...BOTH, 'c.txt': 'gamma "quoted"\n' }, calls: { side: 1, main: 6 }, leaves: 2 },
    'hard-echo': { files: SAID, calls: { side: 1, main: 8 }, leaves: 2 },
    retry: { files: LOG, calls: { side: 1, main: 5 }, leaves: 2, repeated: 2 },
    // Each sub-agent has a leaf, and so has the title.
    'sub-agents': { files: SIDES, calls: { side: 1, main: 3, 'sub-agent': 5 }, leaves: 4 },
    resume: { files: STEPS, calls: { side: 1, main: 4 }, leaves: 2 },
    // The newest rounds are kept word for word after the summary.
    compaction: { files: DONE, calls: { side: 1, main: 10, 'main-summary': 1 }, leaves: 4, imported: 5 },
  },
}

export const GEMINI_CLI: HarnessSuite = {
  recipe: geminiCli,
  scenarios: {
    task: { files: { ...BOTH, 'c.txt': 'gamma "quoted"\n' }, calls: { main: 6 }, leaves: 1 },
    'hard-echo': { files: { ...SAID, 'c.txt': 'typed\n' }, calls: { main: 8 }, leaves: 1 },
    retry: { files: LOG, calls: { main: 5 }, leaves: 1, repeated: 2 },
    'sub-agents': { files: SIDES, calls: { main: 3, 'sub-agent': 5 }, leaves: 3 },
    // A second process lists the folder anew in the first message, and tells every result of a tool twice.
    resume: { files: STEPS, calls: { main: 4 }, leaves: 2, imported: 2 },
    // As above; then a summary, one that is to be better, and a conversation that begins with it.
    compaction: { files: DONE, calls: { main: 10, 'main-summary': 2 }, leaves: 5, imported: 17 },
  },
}

export const PI: HarnessSuite = {
  recipe: pi,
  scenarios: {
    task: { files: { 'c.txt': '3\n' }, calls: { main: 15 }, leaves: 1 },
    'hard-echo': { files: {}, calls: { main: 6 }, leaves: 1 },
    retry: { files: {}, calls: { main: 4 }, leaves: 1, repeated: 2 },
    // It asks for the same summary twice at once.
    compaction: { files: DONE, calls: { main: 11, 'main-summary': 1 }, leaves: 3, imported: 4, repeated: 1 },
  },
}
