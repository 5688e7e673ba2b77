// The page works without this script: it opens what a link leads to, searches, fills in the page's own address and copies commands.
for (const element of document.querySelectorAll('[data-origin]'))
  element.textContent = new URL('.', location.href).href.replace(/\/$/, '');

/** Opens what the address leads to, and what holds it. */
function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let one = target; one; one = one.parentElement) if (one.tagName === 'DETAILS') one.open = true;
  target?.scrollIntoView();
}
addEventListener('hashchange', open);
open();

const search = document.querySelector('.search');
search.hidden = false;
const parts = [...document.querySelectorAll('details, tbody tr:has([id])')].map((part) => ({
  part,
  text: part.textContent.toLowerCase(),
}));
const links = [...document.querySelectorAll('nav li a')];
search.addEventListener('input', ({ target }) => {
  const words = target.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = new Set(parts.filter(({ text }) => words.every((word) => text.includes(word))).map(({ part }) => part));
  for (const { part } of parts) part.hidden = !found.has(part);
  for (const link of links) {
    const leadsTo = document.getElementById(link.hash.slice(1));
    link.parentElement.hidden = leadsTo.tagName === 'DETAILS' && leadsTo.hidden;
  }
  document.getElementById('found').textContent = words.length === 0 ? '' : `${found.size} of ${parts.length} parts`;
});

if (navigator.clipboard) {
  for (const command of document.querySelectorAll('.command')) {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'copy quiet';
    button.textContent = 'copy';
    button.addEventListener('click', async () => {
      await navigator.clipboard.writeText(command.querySelector('pre').textContent);
      button.textContent = 'copied';
      setTimeout(() => {
        button.textContent = 'copy';
      }, 1500);
    });
    command.append(button);
  }
}
