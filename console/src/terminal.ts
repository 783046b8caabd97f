// A terminal in a sandbox, in a frame of its own: its library adds style elements, which the page's policy does not allow.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import "./terminal.css";

const id = decodeURIComponent(location.hash.slice(1));
const place = document.getElementById("terminal");
const STREAM = 9;

if (place && id) {
  const terminal = new Terminal({ cursorBlink: true, scrollback: 5000, fontSize: 13, screenReaderMode: true });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(place);
  fit.fit();
  connect(terminal, fit);
}

function connect(terminal: Terminal, fit: FitAddon) {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const query = `rows=${terminal.rows}&columns=${terminal.cols}`;
  const token = localStorage.getItem("belljar.session") ?? "none";
  const socket = new WebSocket(
    `${scheme}//${location.host}/v1/sandboxes/${encodeURIComponent(id)}/terminal?${query}`,
    ["belljar.session", token],
  );
  socket.binaryType = "arraybuffer";
  socket.onopen = () => terminal.focus();
  socket.onmessage = ({ data }) => {
    if (data instanceof ArrayBuffer) terminal.write(new Uint8Array(data, STREAM));
    else if (typeof data === "string" && data.includes('"event":"exited"')) terminal.write("\r\n[ended]\r\n");
  };
  socket.onclose = ({ reason }) => terminal.write(`\r\n[${reason || "disconnected"}]\r\n`);
  const encoder = new TextEncoder();
  terminal.onData((text) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(encoder.encode(text));
  });
  terminal.onResize(({ rows, cols }) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ resize: { rows, columns: cols } }));
  });
  new ResizeObserver(() => fit.fit()).observe(document.body);
}
