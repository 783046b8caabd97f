// The time, once a second while somebody looks.

export const now = $state<{ ms: number }>({ ms: Date.now() });

setInterval(() => {
  if (!document.hidden) now.ms = Date.now();
}, 1000);
