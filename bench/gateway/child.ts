/** @file One process of the bench: started with tsx, asked over IPC, killed at the end. */
import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'

export interface Usage {
  /** User and system time since the process began. [ms] */
  readonly cpuMs: number
  /** After garbage collection when it was asked for. [bytes] */
  readonly residentBytes: number
  /** On the heap and in buffers: what is in use, without what the allocator keeps for later. [bytes] */
  readonly heldBytes: number
  /** Longest stall of the event loop since the last question. [ms] */
  readonly longestStallMs: number
}

export class Child<Question extends object, Answer> {
  readonly #process: ChildProcess
  readonly #waiting: ((answer: Answer) => void)[] = []
  readonly #failed: Promise<never>

  constructor(file: string, args: readonly string[], env: Readonly<Record<string, string>> = {}) {
    this.#process = fork(new URL(file, import.meta.url), args, {
      execArgv: ['--expose-gc', '--import', 'tsx'],
      env: { ...process.env, ...env },
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    this.#process.on('message', (answer: Answer) => this.#waiting.shift()?.(answer))
    this.#failed = new Promise((_, reject) => {
      this.#process.once('exit', (code) => reject(new Error(`${file} ended with ${code}`)))
    })
    this.#failed.catch(() => undefined)
  }

  async ask(question: Question): Promise<Answer> {
    const answer = new Promise<Answer>((resolve) => this.#waiting.push(resolve))
    this.#process.send(question)
    return Promise.race([answer, this.#failed])
  }

  [Symbol.dispose](): void {
    this.#process.kill('SIGKILL')
  }
}
