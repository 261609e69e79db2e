import { describe } from 'vitest'
import { GEMINI_CLI } from '../support/harness-facts.ts'
import { canRun } from '../support/harness-session.ts'
import { harnessSuite } from '../support/harness-suite.ts'

for (const suite of [GEMINI_CLI]) {
  describe.skipIf(!canRun(suite.recipe, suite.version ?? suite.recipe.defaultVersion))('sessions', () => {
    harnessSuite(suite)
  })
}
