// Commands that tell when a template is ready, for `Template.setStartCmd`.

/** Returns a command that succeeds when a program listens on a port. */
export function waitForPort(port: number): string {
  return `cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qE ':${port.toString(16).toUpperCase().padStart(4, "0")} [0-9A-F]+:0000 0A '`;
}

/** Returns a command that succeeds when a GET of a URL has this status; default: 200. The template needs curl. */
export function waitForURL(url: string, status = 200): string {
  return `test "$(curl -s -o /dev/null -w '%{http_code}' ${quoted(url)})" = ${status}`;
}

/** Returns a command that succeeds when a process with this name runs. The template needs pgrep. */
export function waitForProcess(name: string): string {
  return `pgrep -x ${quoted(name)} > /dev/null`;
}

/** Returns a command that succeeds when a file exists. */
export function waitForFile(path: string): string {
  return `test -e ${quoted(path)}`;
}

/** Returns a command that succeeds after some milliseconds. */
export function waitForTimeout(timeoutMs: number): string {
  return `sleep ${timeoutMs / 1000}`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'"'"'`)}'`;
}
