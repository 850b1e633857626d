// Replaces the source of each formula by the formula.
for (const element of document.querySelectorAll(".formula")) {
  katex.render(element.textContent, element, { displayMode: element.classList.contains("display") });
}
