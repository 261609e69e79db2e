import { describe } from 'vitest'
import { PI } from '../support/harness-facts.ts'
import { canRun } from '../support/harness-session.ts'
import { harnessSuite } from '../support/harness-suite.ts'

for (const suite of [PI]) {
  describe.skipIf(!canRun(suite.recipe, suite.version ?? suite.recipe.defaultVersion))('sessions', () => {
    harnessSuite(suite)
  })
}
