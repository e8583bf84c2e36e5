export * from "../src/index.js";
