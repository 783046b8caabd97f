// CodeMirror, with the languages that sandboxes run.

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { r } from "@codemirror/legacy-modes/mode/r";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { Compartment, EditorState, type Extension, StateEffect, StateField } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { HIDDEN, named } from "./plain";

export type EditorHandle = {
  setValue: (value: string) => void;
  setLanguage: (language: string) => void;
  setDark: (dark: boolean) => void;
  setMarks: (lines: number[]) => void;
  close: () => void;
};

type Options = {
  value: string;
  readonly: boolean;
  label: string;
  changed: (value: string) => void;
  run: () => void;
};

function languageOf(name: string): Extension {
  switch (name) {
    case "python":
      return python();
    case "javascript":
      return javascript();
    case "typescript":
      return javascript({ typescript: true });
    case "bash":
    case "sh":
      return StreamLanguage.define(shell);
    case "r":
      return StreamLanguage.define(r);
    default:
      return [];
  }
}

const colours = (dark: boolean) =>
  HighlightStyle.define([
    { tag: [tags.keyword, tags.controlKeyword], color: dark ? "#c49bff" : "#7a2da8" },
    { tag: [tags.string, tags.special(tags.string)], color: dark ? "#8fd6a0" : "#176b36" },
    { tag: [tags.number, tags.bool, tags.null], color: dark ? "#f2b27a" : "#964308" },
    { tag: tags.comment, color: dark ? "#aeb7c2" : "#5b636d", fontStyle: "italic" },
    { tag: [tags.function(tags.variableName), tags.definition(tags.variableName)], color: dark ? "#8ab4ff" : "#1b4fb3" },
    { tag: [tags.className, tags.typeName], color: dark ? "#7fd3e0" : "#0b6275" },
  ]);

const look = (dark: boolean) => [
  syntaxHighlighting(colours(dark)),
  EditorView.theme(
    {
      "&": { backgroundColor: "transparent", color: "inherit", fontSize: "13px" },
      "&.cm-focused": { outline: "none" },
      ".cm-content": { fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", caretColor: dark ? "#fff" : "#000" },
      ".cm-gutters": { backgroundColor: "transparent", color: dark ? "#99a1ab" : "#5f6771", border: "none" },
      ".cm-scroller": { overflow: "auto", maxHeight: "60vh" },
      ".cm-marked": { backgroundColor: dark ? "#4a3a10" : "#fff1c7" },
      ".cm-specialChar": { color: dark ? "#ff9d94" : "#b3261e" },
      "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: dark ? "#34507d" : "#cfe0ff" },
    },
    { dark },
  ),
];

const setMarks = StateEffect.define<number[]>();
const marked = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(before, transaction) {
    for (const effect of transaction.effects) {
      if (!effect.is(setMarks)) continue;
      const { doc } = transaction.state;
      const lines = [...new Set(effect.value)].filter((line) => line >= 1 && line <= doc.lines).sort((a, b) => a - b);
      const decoration = Decoration.line({ class: "cm-marked" });
      return Decoration.set(lines.map((line) => decoration.range(doc.line(line).from)));
    }
    return before.map(transaction.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** A character that cannot be seen, by its number. */
function special(code: number, description: string | null): HTMLElement {
  const shown = document.createElement("span");
  shown.className = "cm-specialChar";
  shown.textContent = named(String.fromCodePoint(code));
  shown.title = description ?? shown.textContent;
  shown.ariaLabel = shown.title;
  return shown;
}

/** Opens an editor in a shadow root of `host`. */
export function open(host: HTMLElement, { value, readonly, label, changed, run }: Options): EditorHandle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const language = new Compartment();
  const theme = new Compartment();
  const execute = () => {
    run();
    return true;
  };
  const view = new EditorView({
    root,
    parent: root as unknown as Element,
    state: EditorState.create({
      doc: value,
      extensions: [
        lineNumbers(),
        // It knows some of them only, and shows them as dots.
        highlightSpecialChars({ addSpecialChars: HIDDEN, render: special }),
        bracketMatching(),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
        readonly
          ? [EditorState.readOnly.of(true), EditorView.editable.of(false)]
          : [
              history(),
              indentOnInput(),
              keymap.of([
                { key: "Shift-Enter", run: execute },
                { key: "Mod-Enter", run: execute },
                // Without this, Tab would never leave the editor.
                { key: "Escape", run: (at) => (at.contentDOM.blur(), true) },
                indentWithTab,
                ...defaultKeymap,
                ...historyKeymap,
              ]),
              EditorView.updateListener.of((update) => {
                if (update.docChanged) changed(update.state.doc.toString());
              }),
            ],
        marked,
        language.of([]),
        theme.of(look(false)),
      ],
    }),
  });
  return {
    setValue: (next) => {
      if (next !== view.state.doc.toString()) {
        view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } });
      }
    },
    setLanguage: (name) => view.dispatch({ effects: language.reconfigure(languageOf(name)) }),
    setDark: (dark) => view.dispatch({ effects: theme.reconfigure(look(dark)) }),
    setMarks: (lines) => view.dispatch({ effects: setMarks.of(lines) }),
    close: () => view.destroy(),
  };
}
