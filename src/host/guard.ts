/**
 * @file Ends everything a control process started when that process dies, SIGKILL included.
 *
 * One small shell in a session of its own blocks on a pipe whose other end only the control process holds. The end of
 * that pipe means the control process is gone, however it went: then the groups it was told of, everything that
 * carries the owner's marker and everything that works in the owner's folder is killed, and the folder is removed.
 */
import { spawn, type ChildProcess } from 'node:child_process'

// $1: marker prefix `NAME=owner/`, $2: the owner's folder, $3: the same as a sed pattern. One line per message: `add PGID`, `del PGID`.
const SCRIPT = `
trap '' INT TERM HUP QUIT
groups=' '
while read -r op id; do
  case $op in
    add) groups="$groups$id " ;;
    del) case $groups in *" $id "*) groups="\${groups%% $id *} \${groups#* $id }" ;; esac ;;
  esac
done
terminal() { # 5th field after the name: 0 for none
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  set -- \${stat##*) }
  [ "$5" != 0 ]
}
members() {
  [ -d /proc/self ] || return 0
  grep -l -a -F -e "$1" /proc/[0-9]*/environ 2>/dev/null | sed 's#^/proc/##; s#/environ$##'
  ls -l /proc/[0-9]*/cwd 2>/dev/null | sed -n "s#.* /proc/\\([0-9]*\\)/cwd -> $2/.*#\\1#p" |
    while read -r pid; do terminal "$pid" || echo "$pid"; done
}
round=0
while [ $round -lt 50 ]; do
  for g in $groups; do kill -9 "-$g" 2>/dev/null; done
  found=$(members "$1" "$3")
  [ -n "$found" ] || break
  for pid in $found; do kill -9 "$pid" 2>/dev/null; done
  round=$((round + 1))
  sleep 0.1 2>/dev/null || sleep 1
done
rm -rf "$2"
`

export class Guard {
  readonly #marker: string
  readonly #folder: string
  readonly #groups = new Set<number>()
  #child: ChildProcess | undefined

  /** @param marker `NAME=value` prefix that the environment of everything it guards holds. @param folder removed at the end. */
  constructor(marker: string, folder: string) {
    this.#marker = marker
    this.#folder = folder
  }

  /** Starts the guard, or starts it anew when somebody killed it. */
  ensureStarted(): void {
    if (this.#child !== undefined) return
    const child = spawn('/bin/sh', ['-c', SCRIPT, 'gyre-guard', this.#marker, this.#folder, forSed(this.#folder)], {
      detached: true,
      cwd: '/',
      env: { PATH: '/usr/local/bin:/usr/bin:/bin' },
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    this.#child = child
    const gone = (): void => {
      if (this.#child === child) this.#child = undefined
    }
    child.on('error', gone)
    child.on('exit', gone)
    child.stdin.on('error', gone)
    // The guard waits for us, never the other way round.
    child.unref()
    if ('unref' in child.stdin && typeof child.stdin.unref === 'function') child.stdin.unref()
    for (const group of this.#groups) this.#tell(`add ${group}`)
  }

  add(group: number): void {
    this.#groups.add(group)
    this.#tell(`add ${group}`)
  }

  delete(group: number): void {
    this.#groups.delete(group)
    this.#tell(`del ${group}`)
  }

  /** Dismisses the guard: nothing is ended or removed any more when this process dies. */
  dismiss(): void {
    this.#child?.kill('SIGKILL')
  }

  #tell(line: string): void {
    if (this.#child?.stdin?.writable === true) this.#child.stdin.write(`${line}\n`)
  }
}

function forSed(path: string): string {
  return path.replace(/[#.[\]*^$\\]/g, '\\$&')
}
