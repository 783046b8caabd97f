// Dark or light: as the system has it, or as a person has chosen.

const NAME = "belljar.theme";
export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const stored = localStorage.getItem(NAME);
export const theme = $state<{ value: Theme }>({ value: THEMES.find((one) => one === stored) ?? "auto" });

export function applyTheme() {
  document.documentElement.dataset.theme = theme.value;
}

export function setTheme(value: Theme) {
  theme.value = value;
  localStorage.setItem(NAME, value);
  applyTheme();
}
