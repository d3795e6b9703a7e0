// A request as programs that send it: for a shell, for Python and for Node.
const KEY = "TOOLRELAY_API_KEY";

/** `[name, text]` of each program.  The body stays JSON in a quoted text, so nothing in it can become code. */
export function programs(url, headers, body) {
  const text = JSON.stringify(body);
  const named = Object.entries({ "content-type": "application/json", ...headers });
  const curl = [
    `curl -N ${url}`,
    `-H "authorization: Bearer $${KEY}"`,
    ...named.map(([name, value]) => `-H '${name}: ${value}'`),
    `-d '${text.replaceAll("'", "'\\''")}'`,
  ].join(" \\\n  ");
  const python = [
    "import json, os, urllib.request",
    "",
    `body = json.loads(${literal(text)})`,
    `headers = json.loads(${literal(JSON.stringify(Object.fromEntries(named)))})`,
    `headers["authorization"] = "Bearer " + os.environ["${KEY}"]`,
    `request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode(), headers)`,
    "with urllib.request.urlopen(request) as response:",
    "    for line in response:",
    '        print(line.decode(), end="")',
  ].join("\n");
  const node = [
    `const body = JSON.parse(${literal(text)});`,
    `const headers = JSON.parse(${literal(JSON.stringify(Object.fromEntries(named)))});`,
    `headers.authorization = \`Bearer \${process.env.${KEY}}\`;`,
    `const response = await fetch(${JSON.stringify(url)}, { method: "POST", headers, body: JSON.stringify(body) });`,
    "for await (const piece of response.body) process.stdout.write(piece);",
  ].join("\n");
  return [
    ["curl", curl],
    ["Python", python],
    ["Node", node],
  ];
}

/** A text as a literal that JavaScript and Python read alike: ASCII, in double quotes. */
const literal = (text) =>
  JSON.stringify(text).replace(/[\u007f-\uffff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
