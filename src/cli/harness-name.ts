/** @file Reads `NAME[@VERSION]` of a harness. */
import type { HarnessRecipe } from '../adapters/harness/packaged/recipe.ts'
import { HARNESS_RECIPES, harnessRecipe } from '../adapters/harness/packaged/recipes.ts'
import { nearest } from '../config/nearest.ts'
import { GyreError } from '../core/errors.ts'

export interface NamedHarness {
  readonly recipe: HarnessRecipe
  /** undefined when the text names none. */
  readonly version: string | undefined
}

/** @throws GyreError E_CONFIG_HARNESS for a name that nobody has, with the nearest one, and for what cannot be a version. */
export function namedHarness(text: string): NamedHarness {
  const [name = '', version, ...rest] = text.split('@')
  const recipe = harnessRecipe(name)
  if (recipe === undefined) throw unknownHarness(name)
  // It becomes a part of a path, and an argument of npm.
  if (rest.length > 0 || (version !== undefined && !/^\d[\w.+-]*$/.test(version))) {
    throw new GyreError(
      `"${text}" names no version: write it as npm does, for example ${name}@${recipe.defaultVersion}`,
      {
        boundary: 'config',
        code: 'E_CONFIG_HARNESS',
      },
    )
  }
  return { recipe, version }
}

function unknownHarness(name: string): GyreError {
  const names = HARNESS_RECIPES.map((recipe) => recipe.name)
  const near = nearest(name, names)
  const hint = near === undefined ? '' : ` Did you mean ${near}?`
  return new GyreError(
    `no harness "${name}": known are ${names.join(', ')}; add @VERSION for a version of npm.${hint}`,
    { boundary: 'config', code: 'E_CONFIG_HARNESS' },
  )
}
