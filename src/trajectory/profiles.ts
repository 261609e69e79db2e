/** @file The profiles we ship, as observed in the traffic of unmodified harnesses. */
import type { HarnessProfile } from './profile.ts'

const GENERIC: HarnessProfile = {
  name: 'generic',
  threadHeaders: [],
  side: [
    { tools: 'none', systemIncludes: ['title generator'] },
    { tools: 'none', systemIncludes: ['generate', 'title'] },
  ],
  summary: [
    { tools: 'none', systemIncludes: ['summarization'] },
    { tools: 'none', systemIncludes: ['summarizes a conversation'] },
    { lastUserIncludes: ['detailed summary of the conversation'] },
  ],
  subAgent: [{ systemIncludes: ['subagent working for a parent agent'] }],
}

const PROFILES: readonly HarnessProfile[] = [
  GENERIC,
  {
    name: 'pi',
    threadHeaders: [],
    side: [],
    summary: [{ tools: 'none', systemIncludes: ['You are a context summarization assistant'] }],
    subAgent: [],
  },
  {
    name: 'claude-code',
    threadHeaders: ['x-claude-code-agent-id'],
    side: [{ tools: 'none' }],
    summary: [
      {
        lastUserIncludes: [
          'CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.',
          'Your task is to create a detailed summary of the conversation so far',
        ],
      },
    ],
    subAgent: [{ header: 'x-claude-code-agent-id' }, { systemIncludes: ['You are an agent for Claude Code'] }],
  },
  {
    name: 'codex',
    threadHeaders: ['thread-id'],
    side: [],
    summary: [
      { header: 'x-codex-turn-metadata', headerIncludes: '"request_kind":"compaction"' },
      { tools: 'none', lastUserIncludes: ['You are performing a CONTEXT CHECKPOINT COMPACTION'] },
    ],
    subAgent: [{ header: 'x-openai-subagent' }, { header: 'x-codex-parent-thread-id' }],
  },
  {
    name: 'opencode',
    threadHeaders: ['x-session-id'],
    side: [{ tools: 'none', systemIncludes: ['You are a title generator'] }],
    summary: [{ tools: 'none', systemIncludes: ['You are a context summarization agent'] }],
    subAgent: [{ header: 'x-parent-session-id' }],
  },
  {
    name: 'qwen-code',
    threadHeaders: [],
    side: [{ systemIncludes: ['managed memory extraction subagent'] }],
    summary: [{ tools: 'none', systemIncludes: ['You are the component that summarizes a conversation'] }],
    subAgent: [{ systemIncludes: ['You are a general-purpose subagent working for a parent agent'] }],
  },
  {
    name: 'gemini-cli',
    threadHeaders: [],
    side: [],
    summary: [{ tools: 'none', systemIncludes: ['distilling chat history into a structured XML <state_snapshot>'] }],
    subAgent: [{ tools: 'some', systemIncludes: ['complete_task'], firstUserLacks: ['<session_context>'] }],
  },
]

/** Names of the profiles we ship. */
export const HARNESS_PROFILE_NAMES: readonly string[] = PROFILES.map((profile) => profile.name)

/** The profile itself, or the one of this name, else the generic one. */
export function harnessProfile(profile: HarnessProfile | string): HarnessProfile {
  if (typeof profile !== 'string') return profile
  return PROFILES.find(({ name }) => name === profile) ?? GENERIC
}
