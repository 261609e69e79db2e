import { describe } from 'vitest'
import { OLD_QWEN_CODE, QWEN_CODE } from '../support/harness-facts.ts'
import { canRun } from '../support/harness-session.ts'
import { harnessSuite } from '../support/harness-suite.ts'

for (const suite of [QWEN_CODE, OLD_QWEN_CODE]) {
  describe.skipIf(!canRun(suite.recipe, suite.version ?? suite.recipe.defaultVersion))('sessions', () => {
    harnessSuite(suite)
  })
}
