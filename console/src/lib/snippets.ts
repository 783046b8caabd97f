// The same run for other clients.

export const CLIENTS = ["cli", "python", "typescript", "curl"] as const;
export type ClientName = (typeof CLIENTS)[number];
export const CLIENT_NAMES: Record<ClientName, string> = {
  cli: "Command line",
  python: "Python",
  typescript: "TypeScript",
  curl: "curl",
};

const shell = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

export function snippet(client: ClientName, code: string, language: string, origin: string): string {
  switch (client) {
    case "cli":
      return `belljar run --language ${language} --code ${shell(code)}\n`;
    case "python":
      return `from belljar import Sandbox\n\nwith Sandbox.create(api_url=${JSON.stringify(origin)}) as sandbox:\n    done = sandbox.run_code(${JSON.stringify(code)}, language=${JSON.stringify(language)})\n    print(done)\n`;
    case "typescript":
      return `import { Sandbox } from "belljar";\n\nconst sandbox = await Sandbox.create({ apiUrl: ${JSON.stringify(origin)} });\nconsole.log(await sandbox.runCode(${JSON.stringify(code)}, { language: ${JSON.stringify(language)} }));\nawait sandbox.kill();\n`;
    case "curl": {
      const body = shell(JSON.stringify({ code, language }));
      return `ID=$(curl -sS -H "Authorization: Bearer $BELLJAR_API_KEY" ${origin}/v1/sandboxes --json '{}' | jq -r .id)\ncurl -sS -H "Authorization: Bearer $BELLJAR_API_KEY" ${origin}/v1/sandboxes/$ID/code --json ${body}\n`;
    }
  }
}
