// Talks to the service that this page came from. A key is kept for this tab alone.

export class Refused extends Error {
  constructor(message, status, code, param) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

export function keyOf(name) {
  try {
    return sessionStorage.getItem(`disco-${name}`) ?? "";
  } catch {
    return "";
  }
}

export function keepKey(name, key) {
  try {
    if (key) sessionStorage.setItem(`disco-${name}`, key);
    else sessionStorage.removeItem(`disco-${name}`);
  } catch {
    // Without storage a key is asked for again after each reload.
  }
}

/** A response with a status of 2xx. Raises Refused for any other, and where there is no service. */
export async function call(path, { key = "", method = "GET", body, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The service cannot be reached. Is it still running?", 0, "unreachable", null);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // No answer of the service's own.
  }
  const after = response.headers.get("retry-after");
  const again = after ? ` Try again in ${after} s.` : "";
  return new Refused((error.message ?? `HTTP ${response.status}`) + again, response.status, error.code ?? "", error.param ?? null);
}
