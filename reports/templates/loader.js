// Unpacks the page's script and runs it; the page's policy names both by their hashes.
"use strict";

const unpacked = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};

unpacked("stratbench-code").then((source) => {
  document.body.append(Object.assign(document.createElement("script"), { textContent: source }));
});
