// The page is whole without this: it fills in the address it came from, and gives commands a button that copies them.
for (const place of document.querySelectorAll('[data-origin]')) place.textContent = location.origin;

if (navigator.clipboard) {
  for (const command of document.querySelectorAll('.command')) {
    const button = document.createElement('button');
    button.type = 'button';
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
