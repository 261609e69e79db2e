/** @file One cell process: start, wait until it answers, notice its end, end it. */
import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CellBoot } from '../../../cell/main.ts'
import { GyreError, errorText } from '../../../core/errors.ts'
import type { ProcessCell } from './process-cell.ts'

/** Time between two attempts to reach a starting cell. [ms] */
const POLL_MS = 25
/** How much of its log a cell that did not start leaves in the error. [characters] */
const LOG_TAIL = 2000

export interface CellChildOptions {
  /** Program and arguments. */
  readonly argv: readonly string[]
  readonly env: Readonly<Record<string, string>> | undefined
  readonly boot: CellBoot
  readonly logFile: string
  /** Called when the process ends without `end` having been called. */
  readonly onDeath: () => void
}

export class CellChild {
  readonly #options: CellChildOptions
  readonly #process: ChildProcess
  readonly #exited: Promise<void>
  /** Where this process's part of the log begins. [bytes] */
  readonly #logStart: number
  #hasExited = false
  #isEnding = false
  #isReady = false

  constructor(options: CellChildOptions) {
    this.#options = options
    const [program = process.execPath, ...args] = options.argv
    const log = openSync(options.logFile, 'a')
    this.#logStart = fstatSync(log).size
    try {
      this.#process = spawn(program, args, {
        // A group of its own: a terminal's Ctrl-C reaches only the owner, and one kill ends everything.
        detached: true,
        stdio: ['pipe', log, log],
        ...(options.env === undefined ? {} : { env: { ...options.env } }),
      })
    } finally {
      closeSync(log)
    }
    this.#exited = new Promise((resolve) => {
      this.#process.once('exit', resolve)
      this.#process.once('error', resolve)
    })
    void this.#exited.then(() => this.#onExit())
    this.#process.stdin?.on('error', () => undefined)
    // The pipe stays open: its end tells the cell that its owner is gone.
    this.#process.stdin?.write(`${JSON.stringify(options.boot)}\n`)
  }

  get pid(): number | undefined {
    return this.#process.pid
  }

  get isRunning(): boolean {
    return !this.#hasExited
  }

  /**
   * Returns once the cell answers hello.
   * @throws GyreError E_CELL_START when the process ends first or the time is over; it is ended then.
   */
  async ready(cell: ProcessCell, limitMs: number): Promise<void> {
    const endsAt = performance.now() + limitMs
    let last: unknown = new Error('it was not asked yet')
    while (performance.now() < endsAt && !this.#hasExited) {
      try {
        await cell.hello()
        this.#isReady = true
        return
      } catch (error) {
        last = error
        if (!(error instanceof GyreError) || !error.retryable) break
      }
      await Promise.race([sleep(POLL_MS), this.#exited])
    }
    const why = this.#hasExited
      ? `its process ended (${this.#endText()})`
      : `${errorText(last)} (${limitMs} ms allowed)`
    const wasKilled = this.#process.signalCode !== null
    await this.end(0)
    throw new GyreError(`${this.#options.boot.cellId} did not start: ${why}${this.#logText()}`, {
      boundary: 'cell',
      code: 'E_CELL_START',
      // What somebody killed starts the next time; what ended by itself would do so again.
      retryable: wasKilled,
      details: { logFile: this.#options.logFile },
    })
  }

  /** Ends the process: SIGTERM, and SIGKILL to its group after the grace. Returns when it is gone. */
  async end(graceMs: number): Promise<void> {
    this.#isEnding = true
    if (this.#hasExited) return
    if (graceMs > 0) {
      this.#signal('SIGTERM')
      const timer = new AbortController()
      await Promise.race([this.#exited, sleep(graceMs, undefined, { signal: timer.signal }).catch(() => undefined)])
      timer.abort()
    }
    if (!this.#hasExited) this.#signal('SIGKILL')
    await this.#exited
  }

  #signal(name: NodeJS.Signals): void {
    if (this.#process.pid === undefined) return
    try {
      process.kill(-this.#process.pid, name)
    } catch {
      // No such group: everything in it has ended.
    }
  }

  #onExit(): void {
    this.#hasExited = true
    // Whatever the cell started shares its group.
    this.#signal('SIGKILL')
    this.#process.stdin?.destroy()
    if (this.#isReady && !this.#isEnding) this.#options.onDeath()
  }

  #endText(): string {
    const { exitCode, signalCode } = this.#process
    if (signalCode !== null) return `signal ${signalCode}`
    // Node reports a program it cannot run as a negative exit code.
    return exitCode === null || exitCode < 0 ? `${this.#options.argv[0]} cannot be run` : `exit code ${exitCode}`
  }

  #logText(): string {
    const text = readFileSync(this.#options.logFile).subarray(this.#logStart).toString('utf8').trim()
    return text === '' ? '' : `\n${text.slice(-LOG_TAIL)}`
  }
}
