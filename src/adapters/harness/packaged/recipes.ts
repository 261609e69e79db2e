/** @file The harnesses that can be named. */
import type { HarnessRecipe } from './recipe.ts'
import { claudeCode } from './recipes/claude-code.ts'
import { codex } from './recipes/codex.ts'
import { geminiCli } from './recipes/gemini-cli.ts'
import { opencode } from './recipes/opencode.ts'
import { pi } from './recipes/pi.ts'
import { qwenCode } from './recipes/qwen-code.ts'

export const HARNESS_RECIPES: readonly HarnessRecipe[] = [pi, claudeCode, codex, qwenCode, opencode, geminiCli]

export function harnessRecipe(name: string): HarnessRecipe | undefined {
  return HARNESS_RECIPES.find((recipe) => recipe.name === name)
}
