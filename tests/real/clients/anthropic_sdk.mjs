// One call with the Anthropic SDK; prints what came of it as one line of JSON. Read by stories_sdk.py.
import Anthropic from "@anthropic-ai/sdk";

const [, mode] = process.argv.slice(2);
const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: "any" });
const stream = mode === "stream";

async function messages() {
  const request = { model: process.env.MODEL, max_tokens: 100, messages: [{ role: "user", content: "Say hello." }] };
  const answer = await client.messages.create({ ...request, stream });
  if (!stream) return answer.content[0].text;
  let text = "";
  for await (const event of answer) if (event.type === "content_block_delta") text += event.delta.text;
  return text;
}

try {
  console.log(JSON.stringify({ text: await messages() }));
} catch (error) {
  const { status, message, requestID } = error;
  console.log(JSON.stringify({ error: error.constructor.name, status, message, requestID }));
}
