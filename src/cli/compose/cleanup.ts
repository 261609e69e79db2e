import { errorText } from '../../core/errors.ts'

/** What a run has to undo, last first, whatever happened. */
export class Cleanup {
  readonly #undo: { readonly what: string; readonly run: () => void | Promise<void> }[] = []
  readonly #onError: (text: string) => void

  constructor(onError: (text: string) => void) {
    this.#onError = onError
  }

  add(what: string, run: () => void | Promise<void>): void {
    this.#undo.push({ what, run })
  }

  async close(): Promise<void> {
    for (let next = this.#undo.pop(); next !== undefined; next = this.#undo.pop()) {
      try {
        await next.run()
      } catch (error) {
        this.#onError(`${next.what} did not end cleanly: ${errorText(error)}`)
      }
    }
  }
}
