/** @file A control process for tests: starts two cells, says so, and waits to be killed. */
import { startBigramCells } from './cells.ts'

const { supervisor } = await startBigramCells(2, { vocabSize: 8 }, { logFolder: process.argv[2] ?? '.' })
const pids = [supervisor.pidOf(0), supervisor.pidOf(1)]
process.stdout.write(`${JSON.stringify({ pids, address: supervisor.cells[0]?.address })}\n`)
setInterval(() => undefined, 1000)
