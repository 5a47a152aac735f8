// Before the first paint: the theme that was chosen here earlier, if any. A classic script, for it must not be late.
(() => {
  try {
    const chosen = localStorage.getItem("disco-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is closed to this page; the system's theme it is.
  }
})();
