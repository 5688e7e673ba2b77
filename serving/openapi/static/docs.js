// The page works without this script. The script fills in the page's own address and adds a copy button to each command.
for (const element of document.querySelectorAll('[data-origin]')) element.textContent = location.origin;

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
