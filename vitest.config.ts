import { defineConfig } from 'vitest/config'
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
          exclude: ['test/e2e/**', 'test/harness/**'],
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
    ],
  },
})
