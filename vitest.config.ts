import { defineConfig } from 'vitest/config'

/** Start the harnesses that are too large for every run of the tests, and install them first where they are missing. */
const HARNESS_TESTS = [
  'test/harness/**/*.test.ts',
  'src/adapters/harness/packaged/{claude-code,codex,gemini-cli,opencode,qwen-code}.test.ts',
]

export default defineConfig({
  test: {
    testTimeout: 60_000,
    reporters: ['default', './test/plain-reporter.ts'],
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
          exclude: ['test/e2e/**', ...HARNESS_TESTS],
          sequence: { groupOrder: 0 },
        },
      },
      {
        // Whole runs, each of several processes: after everything else, so that nothing waits for a starved test.
        extends: true,
        test: {
          name: 'e2e',
          include: ['test/e2e/**/*.test.ts'],
          maxWorkers: 2,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: {
          name: 'harness',
          include: HARNESS_TESTS,
          maxWorkers: 2,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
})
