// One call with the OpenAI SDK; prints what came of it as one line of JSON. Read by stories_sdk.py.
import OpenAI from "openai";

const [route, mode] = process.argv.slice(2);
const client = new OpenAI({ baseURL: process.env.BASE_URL + "/v1", apiKey: "any" });
const stream = mode === "stream";
const model = process.env.MODEL;

async function chat() {
  const messages = [{ role: "user", content: "Say hello." }];
  const answer = await client.chat.completions.create({ model, messages, stream });
  if (!stream) return answer.choices[0].message.content;
  let text = "";
  for await (const chunk of answer) text += chunk.choices[0]?.delta?.content ?? "";
  return text;
}

async function responses() {
  const answer = await client.responses.create({ model, input: "Say hello.", stream });
  if (!stream) return answer.output_text;
  let text = "";
  for await (const event of answer) if (event.type === "response.output_text.delta") text += event.delta;
  return text;
}

const routes = { chat, responses };
try {
  console.log(JSON.stringify({ text: await routes[route]() }));
} catch (error) {
  const { status, message, requestID } = error;
  console.log(JSON.stringify({ error: error.constructor.name, status, message, requestID }));
}
