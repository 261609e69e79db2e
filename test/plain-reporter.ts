import type { Reporter, TestModule } from 'vitest/node'
/** Ends the run with the one line every CI can read: `N passed, N failed`. */
export default class PlainReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    let passed = 0,
      failed = 0,
      skipped = 0
    for (const m of modules) {
      if (m.errors().length > 0) failed++
      for (const t of m.children.allTests()) {
        const s = t.result().state
        if (s === 'passed') passed++
        else if (s === 'failed') failed++
        else skipped++
      }
    }
    process.stdout.write(`\n${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`)
  }
}
