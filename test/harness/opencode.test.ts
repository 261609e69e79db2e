import { describe } from 'vitest'
import { OPENCODE } from '../support/harness-facts.ts'
import { canRun } from '../support/harness-session.ts'
import { harnessSuite } from '../support/harness-suite.ts'

for (const suite of [OPENCODE]) {
  describe.skipIf(!canRun(suite.recipe, suite.version ?? suite.recipe.defaultVersion))('sessions', () => {
    harnessSuite(suite)
  })
}
