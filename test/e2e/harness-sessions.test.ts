/** @file Whole sessions of the two harnesses that are quick to install. All of them: `npm run test:harness`. */
import { GEMINI_CLI, PI } from '../support/harness-facts.ts'
import { harnessSuite } from '../support/harness-suite.ts'

harnessSuite(PI)
harnessSuite(GEMINI_CLI)
