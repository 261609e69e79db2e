/** @file The harnesses that can be named. */
import type { HarnessRecipe } from './recipe.ts'
import { claudeCode } from './recipes/claude-code.ts'
import { codex } from './recipes/codex.ts'
import { pi } from './recipes/pi.ts'

export const HARNESS_RECIPES: readonly HarnessRecipe[] = [pi, claudeCode, codex]

export function harnessRecipe(name: string): HarnessRecipe | undefined {
  return HARNESS_RECIPES.find((recipe) => recipe.name === name)
}
