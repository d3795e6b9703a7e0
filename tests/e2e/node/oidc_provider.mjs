// A real OpenID provider: prints its issuer, then serves until its standard input ends.
// Its question, one line of JSON: {port, groups, audience, url, accounts}.  People log in, with any password, if
// there is a `url` of the proxy; `accounts` maps their names to their groups.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

// The library writes notices there; standard output is for the answers.
console.info = console.error;

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const asked = JSON.parse((await lines.next()).value);
const issuer = `http://127.0.0.1:${asked.port}`;

function signingKey(kid) {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), kid, use: "sig", alg: "RS256" };
}

const keys = [signingKey("first"), signingKey("second")];
const provider = (ring) =>
  new Provider(issuer, {
    jwks: { keys: ring },
    clients: [
      ...(asked.url
        ? [
            {
              client_id: "toolrelay-ui",
              client_secret: "secret-of-the-ui",
              grant_types: ["authorization_code"],
              redirect_uris: [`${asked.url}/ui/login/done`],
              post_logout_redirect_uris: [`${asked.url}/ui/`],
              response_types: ["code"],
            },
          ]
        : []),
      {
        client_id: "service",
        client_secret: "secret-of-the-service",
        grant_types: ["client_credentials"],
        redirect_uris: [],
        response_types: [],
      },
    ],
    clientBasedCORS: () => false,
    extraTokenClaims: () => ({ groups: asked.groups }),
    findAccount: (_, name) => ({
      accountId: name,
      claims: () => ({ sub: name, preferred_username: name, groups: asked.accounts?.[name] }),
    }),
    claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
    conformIdTokenClaims: false,
    ttl: { ClientCredentials: 300 },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: Boolean(asked.url) },
      resourceIndicators: {
        enabled: true,
        defaultResource: (context) => (context.oidc.client.clientId === "service" ? asked.audience : undefined),
        getResourceServerInfo: (_, resource) => ({
          audience: resource,
          scope: "",
          accessTokenTTL: 300,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
  }).callback();

// After "rotate" the provider signs with its second key and shows that one alone.
let callback = provider([keys[0]]);
createServer((request, response) => callback(request, response)).listen(asked.port, "127.0.0.1", () => {
  console.log(JSON.stringify({ issuer }));
});
for await (const line of { [Symbol.asyncIterator]: () => lines }) {
  if (line === "rotate") {
    callback = provider([keys[1]]);
    console.log(JSON.stringify({ rotated: true }));
  }
}
process.exit(0);
