// A question before something that cannot be undone.

type Question = { text: string; verb: string; answer: (yes: boolean) => void };

export const asked = $state<{ now: Question | null }>({ now: null });

export function ask(text: string, verb: string): Promise<boolean> {
  return new Promise((resolve) => {
    asked.now = {
      text,
      verb,
      answer: (yes) => {
        asked.now = null;
        resolve(yes);
      },
    };
  });
}

/** A message at the edge of the page. */
export const notices = $state<{ all: { id: number; text: string; bad: boolean }[] }>({ all: [] });
let next = 0;

export function notify(text: string, bad = false) {
  next += 1;
  const id = next;
  // What is there already is shown once.
  notices.all = [...notices.all.filter((notice) => notice.text !== text), { id, text, bad }];
  setTimeout(() => dismiss(id), bad ? 15_000 : 5_000);
}

export function dismiss(id: number) {
  notices.all = notices.all.filter((notice) => notice.id !== id);
}
