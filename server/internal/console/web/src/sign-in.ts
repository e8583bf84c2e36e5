import { h } from "./dom.js";
import type { Credential } from "./session.js";

/**
 * Returns the form with which the user signs in. problem says what was wrong with the last credential, and given is what
 * the form contains at first. A user with a client certificate may have to name a tenant, without a token.
 */
export function signInForm(
  problem: string,
  signIn: (credential: Credential) => void,
  given: Credential = {},
): HTMLElement {
  const token = h("input", {
    id: "token",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    autofocus: true,
    "aria-describedby": problem ? "problem" : undefined,
  });
  token.value = given.token ?? "";
  const tenant = h("input", { id: "tenant", type: "text", autocomplete: "off", spellcheck: "false" });
  tenant.value = given.tenant ?? "";
  return h(
    "main",
    { class: "sign-in" },
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          const credential = { token: token.value.trim(), tenant: tenant.value.trim() };
          if (credential.token || credential.tenant) {
            signIn(credential);
          } else {
            token.focus();
          }
        },
      },
      h("h1", {}, "Parley"),
      h("p", {}, "This server requires sign-in. The page keeps the token in its memory only."),
      h("label", { for: "token" }, "Token"),
      token,
      h("label", { for: "tenant" }, "Tenant, if the token is for several"),
      tenant,
      problem !== "" && h("p", { id: "problem", class: "failure", role: "alert" }, problem),
      h("button", { type: "submit" }, "Sign in"),
    ),
  );
}
